"""What every formula of kl, sequences and clipping does with its arguments."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from libraries import each_library, plain

from rlnb import clipping, kl, sequences
from rlnb.inputs import arrays, number

pytestmark = pytest.mark.filterwarnings("error")

HALVES, QUARTERS = [[0.5, 0.5], [1.0, 0.0]], [[0.25, 0.75], [0.5, 0.5]]
LOGP, LOGQ = [[-1.0, -0.5], [-2.0, -0.25]], [[-1.5, -0.5], [-0.5, -4.0]]
RATIO, ADVANTAGE = [[0.6, 1.4], [1.0, 1.5]], [[2.0, 1.0], [-1.0, -2.0]]
REWARD, MASK = [[1.0, 0.0], [3.0, -2.0]], [[1, 0], [1, 1]]
CLIP = {"ratio": RATIO, "advantage": ADVANTAGE}
BATCHES = {"logp": LOGP, "logq": LOGQ}

# name: function, its arrays, its numbers
CALLS = {
    "log_ratio": (kl.log_ratio, BATCHES, {}),
    "kl_divergence": (kl.kl_divergence, {"p": HALVES, "q": QUARTERS}, {}),
    "entropy": (kl.entropy, {"p": HALVES}, {}),
    "shaped_reward": (
        kl.shaped_reward,
        {"reward": REWARD, "log_ratio": LOGQ},
        {"beta": 0.1},
    ),
    "unpenalised_reward": (
        kl.shaped_reward,
        {"reward": REWARD, "log_ratio": LOGQ},
        {"beta": 0},
    ),
    "regularized_objective": (
        kl.regularized_objective,
        {"p": HALVES, "q": QUARTERS, "reward": REWARD},
        {"beta": 0.1},
    ),
    "tilted_optimum": (
        kl.tilted_optimum,
        {"q": QUARTERS, "reward": REWARD},
        {"beta": 0.1},
    ),
    "sequence_log_ratio": (sequences.sequence_log_ratio, {**BATCHES, "mask": MASK}, {}),
    "masked_mean": (sequences.masked_mean, {"values": LOGP, "mask": MASK}, {}),
    "returns_to_go": (sequences.returns_to_go, {"rewards": REWARD, "mask": MASK}, {}),
    "token_log_probs": (
        sequences.token_log_probs,
        {"logits": REWARD},
        {"ids": [0, 1], "temperature": 0.5},
    ),
    "clipped_surrogate": (clipping.clipped_surrogate, CLIP, {"eps": 0.2}),
    "clipped_slope": (clipping.clipped_slope, CLIP, {"eps": 0.2}),
    "clip_is_active": (clipping.clip_is_active, CLIP, {"eps": 0.2}),
    "clip_fraction": (clipping.clip_fraction, CLIP, {"eps": 0.2}),
    "dual_clip": (clipping.dual_clip, CLIP, {"eps": 0.2, "c": 1.2}),
    "should_stop": (clipping.should_stop, {"log_ratio": LOGQ}, {"limit": 0.1}),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
ARGUMENTS = [(name, argument) for name in CALLS for argument in CALLS[name][1]]
each_argument = pytest.mark.parametrize("name, argument", ARGUMENTS)
each_paired_argument = pytest.mark.parametrize(
    "name, argument", [(n, a) for n, a in ARGUMENTS if len(CALLS[n][1]) > 1]
)


def refused(name, function, /, **arguments):
    """The call ends in a ValueError on `name`: value seen, what is allowed."""
    with pytest.raises(ValueError, match=f"(?s)^(the .*)?{name}.* is .*; allowed: "):
        function(**arguments)


@each_call
@each_library
def test_every_library_gives_the_same_numbers_in_its_own_dtype(call, lib):
    function, named, numbers = call
    got = function(**{k: lib(v) for k, v in named.items()}, **numbers)
    right = function(**named, **numbers)
    if isinstance(right, bool) or plain(right).dtype == bool:
        np.testing.assert_array_equal(plain(got), right)
    else:
        lib.check(got, right)


@each_call
@each_library
def test_no_input_is_changed_and_no_result_is_a_view_of_one(call, lib):
    function, named, numbers = call
    inputs = {k: lib(v) for k, v in named.items()}
    got = function(**inputs, **numbers)
    if not isinstance(got, bool) and plain(got).ndim:
        assert not any(np.shares_memory(plain(got), plain(x)) for x in inputs.values())
        got[...] = 0  # writable, and not the caller's own numbers
    for name, x in inputs.items():
        np.testing.assert_array_equal(plain(x), plain(lib(named[name])))


@each_call
def test_transposed_tensors_that_carry_a_gradient_are_read_in_their_order(call):
    function, named, numbers = call
    inputs = {
        k: torch.tensor(v, dtype=torch.float64).T.contiguous().T.requires_grad_()
        for k, v in named.items()
    }
    assert not any(x.is_contiguous() for x in inputs.values())
    np.testing.assert_allclose(
        plain(function(**inputs, **numbers)), plain(function(**named, **numbers))
    )


@each_library
def test_numbers_and_lists_follow_the_array_beside_them(lib):
    _, before, array, after, one = arrays(a=[0.1], b=lib([1]), c=[[2]], d=0.1)
    lib.check(before, [0.1])
    lib.check(array, [1.0])
    lib.check(after, [[2.0]])
    lib.check(one, 0.1)
    assert float(one) == float(lib(0.1))


def test_a_list_loses_no_digits_on_its_way_into_a_float64_tensor():
    _, ints, listed, _ = arrays(
        a=torch.tensor([1, 0]), b=[0.1, 0.9], c=torch.tensor(0.5, dtype=torch.float64)
    )
    assert ints.dtype == torch.float64
    assert listed[0].item() == 0.1


def test_lists_follow_the_one_tensor_wherever_it_stands():
    q = torch.tensor([0.5, 0.5])
    got = kl.regularized_objective([0.8, 0.2], q, [1, 0], 0.1)
    assert torch.is_tensor(got) and got.item() == pytest.approx(0.7807255, abs=1e-6)


@pytest.mark.parametrize("kind", [bool, int, np.int32, np.uint8, list])
def test_integers_and_booleans_become_float64(kind):
    x = [1, 0] if kind is list else np.asarray([1, 0], kind)
    assert arrays(p=x)[1].dtype == np.float64
    assert kl.kl_divergence(x, [0.5, 0.5]) == pytest.approx(np.log(2), abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
def test_integer_tensors_take_torchs_default_dtype(dtype):
    x = torch.tensor([1, 0], dtype=dtype)
    assert arrays(p=x)[1].dtype == torch.get_default_dtype()
    assert arrays(p=x, q=torch.ones(2).double())[1].dtype == torch.float64


@pytest.mark.parametrize("xp", [np, torch])
def test_float32_beside_float64_is_computed_in_float64(xp):
    third = xp.asarray([1 / 3, 2 / 3], dtype=xp.float64)
    got = kl.kl_divergence(third, xp.asarray([0.5, 0.5], dtype=xp.float32))
    right = np.log(2) - kl.entropy([1 / 3, 2 / 3])
    assert got.dtype == xp.float64 and float(got) == pytest.approx(right, abs=1e-15)


BAD = {
    "None": None,
    "text": "0.5",
    "texts": ["a", "b"],
    "complex": np.array([[0.5j, 0.5], [1, 0]]),
    "complex tensor": torch.tensor([[0.5j, 0.5], [1, 0]]),
    "ragged": [[0.5, 0.5], [1.0]],
    "empty": [],
    "no columns": np.ones((2, 0)),
    "object": np.array([10**400, 1]),
    "a dictionary": {"p": 1},
    "float16": np.array([[0.5, 0.5], [1, 0]], np.float16),
    "bfloat16": torch.tensor([[0.5, 0.5], [1, 0]], dtype=torch.bfloat16),
    "float8": torch.tensor([[0.5, 0.5]]).to(torch.float8_e4m3fn),
    "list of tensors": [torch.ones(2, requires_grad=True)],
}


@each_argument
def test_what_is_no_array_of_real_numbers_is_refused_by_name(name, argument):
    function, named, numbers = CALLS[name]
    for bad in BAD.values():
        half = str(getattr(bad, "dtype", "")).endswith("float16")
        if not (half and argument == "logits"):  # those are widened
            refused(argument, function, **{**named, argument: bad}, **numbers)


@each_argument
@each_library
def test_a_nan_in_any_argument_is_refused_by_name_and_place(name, argument, lib):
    function, named, numbers = CALLS[name]
    bad = np.array(named[argument], float)
    bad[0, 0] = np.nan
    inputs = {k: lib(v) for k, v in {**named, argument: bad}.items()}
    with pytest.raises(ValueError, match=rf"{argument}\[0, 0\] is nan; allowed: "):
        function(**inputs, **numbers)


@pytest.mark.parametrize(
    "name, argument, inf",
    [
        (name, argument, inf)
        for name, argument in ARGUMENTS
        for inf in (np.inf, -np.inf)
        if not (argument == "log_ratio" and "reward" in name)
        if inf > 0 or argument not in ("logp", "logq", "logits", "log_ratio")
    ],
)
def test_infinity_is_refused_by_name_unless_it_is_a_logarithm(name, argument, inf):
    function, named, numbers = CALLS[name]
    bad = np.array(named[argument], float)
    bad[0, 0] = inf
    refused(argument, function, **{**named, argument: bad}, **numbers)


@each_paired_argument
def test_shapes_that_do_not_fit_are_refused_with_the_shape(name, argument):
    function, named, numbers = CALLS[name]
    bad = np.full((2, 3), 1 / 3) if argument in "pq" else -np.ones((2, 3))
    bad = abs(bad) if argument in ("ratio", "mask") else bad
    with pytest.raises(ValueError, match=r"(?s)\(2, 3\)|3 outcomes.*allowed: "):
        function(**{**named, argument: bad}, **numbers)


@each_paired_argument
def test_numpy_beside_torch_is_refused_naming_both(name, argument):
    function, named, numbers = CALLS[name]
    others = {k: torch.tensor(v) for k, v in named.items() if k != argument}
    with pytest.raises(ValueError, match="NumPy array.* allowed: both") as caught:
        function(**{argument: np.array(named[argument])}, **others, **numbers)
    assert argument in str(caught.value)


NUMBERS = {
    "beta": (CALLS["shaped_reward"], [-0.1, -1e-300]),
    "eps": (CALLS["dual_clip"], [0, 0.0, 1, 1.0, -0.2, 1.5]),
    "c": (CALLS["dual_clip"], [1, 0.5, -3]),
    "limit": (CALLS["should_stop"], [0, -0.015]),
    "temperature": (CALLS["token_log_probs"], [0, -1, 1e-300]),
    "eos_id": ((sequences.completion_mask, {"ids": MASK}, {}), [2.5]),
}
NO_NUMBER = [
    *(np.nan, np.inf, -np.inf, True, np.True_, torch.tensor(True), None, "0.5", b"1"),
    *(0.5j, np.complex128(0.5), 10**400, 1e300, [0.5], [0.5, 0.6], {}),
    *(np.array([0.5]), np.array([0.5, 0.6]), torch.tensor([0.5, 0.6])),
]


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_not_one_allowed_number_is_refused_with_the_value(name):
    (function, named, numbers), outside = NUMBERS[name]
    for bad in [*NO_NUMBER, *outside]:
        with pytest.raises(ValueError) as caught:
            function(**named, **{**numbers, name: bad})
        assert str(caught.value).startswith(f"{name} is {bad!r}; allowed: ")


@pytest.mark.parametrize("beta", [-1, np.nan, np.array([0, 0]), torch.zeros(2)])
@pytest.mark.parametrize("name", ["regularized_objective", "tilted_optimum"])
def test_every_function_of_beta_refuses_a_bad_one(name, beta):
    function, named, _ = CALLS[name]
    refused("beta", function, **named, beta=beta)


@pytest.mark.parametrize(
    "half",
    [
        *(0.5, Fraction(1, 2), np.float32(0.5), np.float64(0.5), np.array(0.5)),
        *(torch.tensor(0.5), torch.tensor(0.5, requires_grad=True)),
    ],
    ids=repr,
)
def test_one_number_may_come_in_many_forms(half):
    assert number("x", half, "a half", lambda x: x == 0.5) == 0.5


def test_a_refusal_names_the_row_and_enough_digits():
    with pytest.raises(ValueError, match=r"^the sum of p\[3\] is 0\.9; allowed: 1"):
        kl.kl_divergence([[0.5, 0.5]] * 3 + [[0.5, 0.4]], [0.5, 0.5])
    with pytest.raises(ValueError, match="the sum of q is 1.000002;"):
        kl.kl_divergence([0.5, 0.5], [0.5, 0.500002])


def test_a_refusal_of_a_tensor_with_a_gradient_is_no_warning_about_it():
    bad = torch.tensor([-1.0, 0.5], requires_grad=True)
    refused(r"logp\[1\]", kl.log_ratio, logp=bad, logq=bad)


def test_the_formulas_start_without_torch_or_matplotlib():
    code = "import rlnb.kl, rlnb.sequences, rlnb.clipping, sys; "
    code += "print(rlnb.kl.kl_divergence([1, 0], [1, 0])); "
    code += "print({'torch', 'matplotlib'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    printed = subprocess.check_output(command, text=True)
    assert printed.split() == ["0.0", "set()"]
