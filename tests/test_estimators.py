"""k1, k2, k3: their values to the last digits, and what their gradients do."""

import math
import re
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import each_library, plain, printed_without_torch, quick, torch_pin

from rlnb.estimators import (
    ESTIMATORS,
    PLACEMENTS,
    estimate,
    expected_gradient,
    k1,
    k2,
    k3,
)
from rlnb.kl import kl_divergence, log_ratio

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan
P, Q = [0.8, 0.2], [0.5, 0.5]
each_estimator = pytest.mark.parametrize("name", ["k1", "k2", "k3"])
each_placement = pytest.mark.parametrize(
    "placement", ["loss", "reward", "weighted_loss"]
)

VALUES = {
    "k1": lambda x: x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.expm1(-x) + x,
}
SLOPES = {"k1": lambda x: 1.0, "k2": lambda x: x, "k3": lambda x: -math.expm1(-x)}


def tensor(x, dtype=torch.float64, grad=False):
    return torch.tensor(np.asarray(x), dtype=dtype, requires_grad=grad)


LOGITS = tensor(np.log(P))


def softmax(logits):
    weights = np.exp(np.array(logits) - np.max(logits))
    return weights / weights.sum()


pairs = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-4, 4), min_size=n, max_size=n),  # logits
        st.lists(st.integers(1, 9), min_size=n, max_size=n).map(
            lambda w: [x / sum(w) for x in w]  # q
        ),
    )
)


def by_hand(name, logits, q, placement):
    """A sum over what is sampled, with the score e_a - p written out."""
    p = softmax(logits)
    total = np.zeros(len(p))
    for a in range(len(p)):
        if p[a]:
            score = np.eye(len(p))[a] - p
            x = math.log(p[a] / q[a])
            through_k = SLOPES[name](x) * score
            through_p = VALUES[name](x) * score
            total += (
                p[a]
                * {
                    "loss": through_k,
                    "reward": through_p,
                    "weighted_loss": through_k + through_p,
                }[placement]
            )
    return total


def differences(function, x, h=1e-5):
    steps = h * np.eye(len(x))
    ends = [(function(x + step), function(x - step)) for step in steps]
    return np.array([(up - down) / (2 * h) for up, down in ends])


def exact_k3(x):
    """exp(-x) - 1 + x with 350 digits, of which 1e-150 costs 300."""
    with localcontext(prec=350):
        return float((-Decimal(x)).exp() - 1 + Decimal(x))


# --- values -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, mean, variance",
    [
        ("k1", 0.192745, 0.307490),
        ("k2", 0.172320, 0.015311),
        ("k3", 0.192745, 0.038213),
    ],
)
@each_library
def test_mean_and_variance_on_the_standard_pair(lib, name, mean, variance):
    x = log_ratio(lib(np.log(P)), lib(np.log(Q)))
    got = estimate(name, x)
    lib.check(got, [VALUES[name](math.log(v)) for v in (1.6, 0.4)])
    lib.check((lib(P) * got).sum(), mean, slack=1e-6)
    lib.check((lib(P) * (got - mean) ** 2).sum(), variance, slack=1e-6)


def test_each_name_has_its_own_function():
    assert ESTIMATORS == {"k1": k1, "k2": k2, "k3": k3}
    assert set(PLACEMENTS) == {"loss", "reward", "weighted_loss"}
    assert [f(2.0) for f in (k1, k2)] == [2.0, 2.0]
    assert k3(2.0) == pytest.approx(math.exp(-2) + 1, abs=1e-15)
    for name, function in ESTIMATORS.items():
        assert estimate(name, -0.3) == function(-0.3)


@each_library
def test_an_unlikely_answer_has_a_large_k3_that_is_not_capped(lib):
    lib.check(k3(lib([-3.0])), [16.085537], slack=1e-6)
    if lib.module is torch:
        x = lib([-3.0]).requires_grad_()
        k3(x).backward()
        lib.check(x.grad, [-19.085537], slack=1e-6)


@pytest.mark.parametrize(
    "x, right", [(-1e-6, 5e-13), (1e-6, 5e-13), (0.0, 0.0), (-1e-18, 5e-37)]
)
@each_library
def test_near_zero_k3_keeps_its_digits_and_its_slope(lib, x, right):
    if lib.dtype == "float32" and right:
        naive = np.exp(np.float32(-x)) - np.float32(1) + np.float32(x)
        assert abs(naive - right) > right / 2
    got = k3(lib(x))
    lib.check(got, right)
    assert float(got) == pytest.approx(right, rel=2e-6, abs=0)
    if lib.module is torch:
        x = lib(x).requires_grad_()
        k3(x).backward()
        right = -math.expm1(-x.item())
        assert x.grad.item() == pytest.approx(right, rel=1e-6, abs=0)


def sizes(least, most):
    """Numbers of both signs and every order of magnitude."""
    exponents = st.floats(math.log10(least), math.log10(most))
    number = exponents.map(lambda e: 10**e)
    return st.builds(math.copysign, number, st.sampled_from([1.0, -1.0]))


@pytest.mark.parametrize(
    "dtype, log_ratios",
    [(np.float64, sizes(1e-150, 700)), (np.float32, sizes(1e-18, 87))],
)
def test_k3_is_its_formula_within_a_few_units_of_the_last_place(dtype, log_ratios):
    @quick
    @given(log_ratios)
    def check(x):
        x = np.asarray(x, dtype)
        right, ulps = exact_k3(float(x)), 8 * float(np.finfo(dtype).eps)
        for got in (k3(x), k3(torch.from_numpy(x))):
            assert float(got) == pytest.approx(right, rel=ulps, abs=0)
            assert float(got) > 0
        assert k2(x) >= 0 and k1(x) == x
        assert float(k2(x)) == pytest.approx(float(x) ** 2 / 2, rel=ulps)

    check()


@pytest.mark.parametrize("edge", [0.5, -0.5])
@each_library
def test_the_series_meets_the_formula_without_a_step(lib, edge):
    x = plain(lib(edge))
    eps = float(np.finfo(x.dtype).eps)
    for near in (x, np.nextafter(x, 0 * x), np.nextafter(x, 2 * x)):
        right = exact_k3(float(near))
        assert float(k3(lib(near))) == pytest.approx(right, rel=8 * eps)
        if lib.module is torch:
            point = lib(near).requires_grad_()
            k3(point).backward()
            right = -math.expm1(-float(near))
            assert point.grad.item() == pytest.approx(right, rel=8 * eps)


@quick
@given(st.lists(st.floats(-30, 30), min_size=1))
def test_slopes_are_autograds_for_any_batch(log_ratios):
    for name in ESTIMATORS:
        x = tensor([log_ratios, log_ratios[::-1]], grad=True)
        got = estimate(name, x)
        right = [VALUES[name](v) for v in log_ratios]
        np.testing.assert_allclose(plain(got), [right, right[::-1]], 1e-12, 1e-15)
        got.sum().backward()
        right = [SLOPES[name](v) for v in log_ratios]
        np.testing.assert_allclose(x.grad, [right, right[::-1]], 1e-12, 1e-15)


@quick
@given(pairs)
def test_k1_and_k3_are_unbiased_where_q_covers_p(pair):
    logits, q = pair
    p = softmax(logits)
    x = log_ratio(np.log(p), np.log(q))
    right = kl_divergence(p, q)
    assert p @ k1(x) == pytest.approx(right, abs=1e-12)
    assert p @ k3(x) == pytest.approx(right, abs=1e-12)


def test_k3_misses_what_p_never_samples():
    # q's share of the outcomes that p never produces is what it lacks
    x = log_ratio(np.log([0.8, 0.2]), np.log([0.3, 0.2]))
    lacking = kl_divergence([0.8, 0.2, 0.0], [0.3, 0.2, 0.5]) - P @ k3(x)
    assert lacking == pytest.approx(0.5, abs=1e-12)


def test_k2_is_biased_and_the_reciprocal_slip_estimates_something_else():
    x = np.log(np.array(P) / Q)
    kl = kl_divergence(P, Q)
    assert P @ k2(x) - kl == pytest.approx(0.172320 - 0.192745, abs=1e-6)
    slip = k3(-x)  # exp(+l) - 1 - l
    chi2 = sum(a * a / b for a, b in zip(P, Q, strict=True)) - 1
    assert P @ slip == pytest.approx(0.167255, abs=1e-6)
    assert P @ slip == pytest.approx(chi2 - kl, abs=1e-12)
    assert P @ abs(k1(x)) == pytest.approx(0.559261, abs=1e-6)


@each_estimator
@each_library
def test_no_input_is_changed_and_no_result_is_a_view_of_one(lib, name):
    x = lib([[0.4, -0.9], [0.0, 2.0]])
    got = estimate(name, x)
    lib.check(got, np.vectorize(VALUES[name])(plain(x)))
    assert not np.shares_memory(plain(got), plain(x))
    got[...] = 7
    lib.check(x, [[0.4, -0.9], [0.0, 2.0]])


@each_estimator
@each_library
def test_shapes_from_a_single_number_up(lib, name):
    for shape in ((), (1,), (3,), (2, 1, 3)):
        right = np.full(shape, VALUES[name](0.7))
        lib.check(estimate(name, lib(np.full(shape, 0.7))), right)


@each_estimator
def test_lists_and_integers_become_float64(name):
    right = [VALUES[name](x) for x in (-2, 0, 1)]
    for x in ([-2, 0, 1], np.array([-2, 0, 1])):
        got = estimate(name, x)
        assert got.dtype == np.float64 and got.tolist() == pytest.approx(right)


# --- the gradient that a trainer gets -----------------------------------------


@pytest.mark.parametrize(
    "name, loss, reward, weighted",
    [
        ("k1", 0, 0.221807, 0.221807),
        ("k2", 0.221807, -0.049495, 0.172312),
        ("k3", 0.300000, -0.078193, 0.221807),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_nine_gradients_of_the_standard_pair(name, loss, reward, weighted, dtype):
    rights = dict(zip(PLACEMENTS, (loss, reward, weighted), strict=True))
    for placement, right in rights.items():
        got = expected_gradient(name, LOGITS.to(dtype), Q, placement)
        assert got.dtype == dtype and not got.requires_grad
        assert got.tolist() == pytest.approx([right, -right], abs=1e-6)


@each_placement
@each_estimator
def test_every_gradient_is_the_sum_by_hand(name, placement):
    @settings(quick, max_examples=20)
    @given(pairs)
    def check(pair):
        right = by_hand(name, *pair, placement)
        got = expected_gradient(name, tensor(pair[0]), pair[1], placement)
        np.testing.assert_allclose(got, right, 1e-10, 1e-12)
        got = expected_gradient(
            name,
            tensor(pair[0], torch.float32),
            tensor(pair[1], torch.float32),
            placement,
        )
        slack = 1e-5 * (1 + abs(right).max())
        np.testing.assert_allclose(got, right, atol=slack)

    check()


@each_placement
@each_estimator
def test_every_gradient_is_a_finite_difference_with_the_right_part_fixed(
    name, placement
):
    logits, q = np.array([0.3, -1.0, 0.9, 0.0]), np.array([0.4, 0.1, 0.2, 0.3])
    fixed = softmax(logits)

    def k(p):
        return np.vectorize(VALUES[name])(np.log(p / q))

    mean = {
        "loss": lambda z: fixed @ k(softmax(z)),
        "reward": lambda z: softmax(z) @ k(fixed),
        "weighted_loss": lambda z: softmax(z) @ k(softmax(z)),
    }[placement]
    got = expected_gradient(name, tensor(logits), q.tolist(), placement)
    np.testing.assert_allclose(got, differences(mean, logits), atol=1e-9)


@quick
@given(pairs)
def test_which_gradients_are_those_of_which_divergence(pair):
    logits, q = pair
    p, got = softmax(logits), {}
    for name in ESTIMATORS:
        for placement in PLACEMENTS:
            got[name, placement] = expected_gradient(name, tensor(logits), q, placement)
    x = np.log(p / q)
    of_kl, of_kl_the_other_way = p * (x - p @ x), p - q
    for exact in (
        *(("k1", "reward"), ("k1", "weighted_loss")),
        *(("k2", "loss"), ("k3", "weighted_loss")),
    ):
        np.testing.assert_allclose(got[exact], of_kl, atol=1e-12)
    np.testing.assert_allclose(got["k1", "loss"], 0, atol=1e-12)
    np.testing.assert_allclose(got["k3", "loss"], of_kl_the_other_way, atol=1e-12)
    for name in ESTIMATORS:
        total = got[name, "loss"] + got[name, "reward"]
        np.testing.assert_allclose(got[name, "weighted_loss"], total, atol=1e-12)


def test_k3_in_the_reward_has_the_wrong_sign():
    wanted = expected_gradient("k1", LOGITS, Q, "reward")
    got = expected_gradient("k3", LOGITS, Q, "reward")
    assert wanted[0] > 0 > got[0]


def test_near_the_reference_k3_as_a_loss_agrees_only_to_first_order():
    def got_and_wanted(distance):
        near = tensor(np.log([0.5 + distance, 0.5 - distance]))
        return [
            expected_gradient(name, near, Q, "loss")[0].item() for name in ("k3", "k2")
        ]

    got, wanted = got_and_wanted(0.01)
    assert got == pytest.approx(0.0100, abs=1e-12)
    assert wanted == pytest.approx(0.009997, abs=5e-7)
    half = np.subtract(*got_and_wanted(0.005))
    assert (got - wanted) / half == pytest.approx(8, abs=0.01)


def gradient(function, p=P):
    """d function(log p) / d logit 1."""
    logits = tensor(np.log(p), grad=True)
    value = function(logits.log_softmax(-1))
    return torch.autograd.grad(value, logits)[0][0].item()


def of_samples(k):
    """The mean of k(log-ratio) over samples of P that are held fixed."""
    return lambda logp: (tensor(P) * k(log_ratio(logp, tensor(np.log(Q))))).sum()


@pytest.mark.parametrize(
    "k, value, slope",
    [
        (lambda x: k3(x).detach() + k2(x) - k2(x).detach(), 0.192745, 0.221807),
        (lambda x: k3(-x), 0.167255, 0.192),
        (lambda x: abs(k1(x)), 0.559261, 0.32),
    ],
    ids=["straight-through", "reciprocal slip", "absolute value"],
)
def test_variants_as_a_loss(k, value, slope):
    assert of_samples(k)(LOGITS).item() == pytest.approx(value, abs=1e-6)
    assert gradient(of_samples(k)) == pytest.approx(slope, abs=1e-6)


def test_samples_of_an_older_policy_need_its_weights_and_the_new_log_ratio():
    old = tensor([0.5, 0.5])
    weights = tensor(P) / old
    np.testing.assert_allclose(weights, [1.6, 0.4])

    def mean_k2(logp, weights=1.0):
        return (old * weights * k2(log_ratio(logp, tensor(np.log(Q))))).sum()

    assert gradient(mean_k2) == pytest.approx(0.413517, abs=1e-6)
    weighted = gradient(lambda logp: mean_k2(logp, weights))
    wanted = expected_gradient("k2", LOGITS, Q, "loss")[0].item()
    assert weighted == pytest.approx(0.221807, abs=1e-6)
    assert weighted == pytest.approx(wanted, abs=1e-12)
    old_k2 = k2(log_ratio(old.log(), tensor(np.log(Q))))  # of the wrong policy
    assert gradient(lambda logp: (logp.exp() * old_k2).sum()) == 0


TREES = [  # seed: KL; variance of k1, k3; cosines of k3 in loss and reward
    (0, 1.211821, (2.27, 3.20), (0.831, 0.232)),
    (1, 1.559625, (2.55, 8.25), (0.830, 0.463)),
    (2, 1.345638, (1.92, 7.19), (0.791, -0.286)),
]


@pytest.mark.parametrize("seed, kl, variances, cosines", TREES)
def test_on_random_trees_k3_varies_more_and_points_elsewhere(
    seed, kl, variances, cosines
):
    torch.manual_seed(seed)
    z, z_ref = (torch.randn(110, dtype=torch.float64) for _ in "pq")
    z.requires_grad_()

    def paths(z):
        """Log-probabilities of the 100 paths: logits 0-9, then ten rows."""
        first, second = z[:10].log_softmax(-1), z[10:].view(10, 10)
        return (first[:, None] + second.log_softmax(-1)).flatten()

    logp, logq = paths(z), paths(z_ref)
    p, x = logp.detach().exp(), log_ratio(logp.detach(), logq)
    for k, variance in zip((k1, k3), variances, strict=True):
        assert p @ k(x) == pytest.approx(kl, abs=1e-6)
        assert p @ (k(x) - kl) ** 2 == pytest.approx(variance, abs=0.005)

    def on_the_tree(*which):
        to_paths = expected_gradient(which[0], logp, logq.exp(), which[1])
        return torch.autograd.grad(logp, z, to_paths, retain_graph=True)[0]

    wanted = on_the_tree("k1", "reward")
    exact = kl_divergence(logp.exp(), logq.exp())
    right = torch.autograd.grad(exact, z, retain_graph=True)[0]
    np.testing.assert_allclose(wanted, right, atol=1e-12)
    for placement, cosine in zip(("loss", "reward"), cosines, strict=True):
        got = torch.cosine_similarity(on_the_tree("k3", placement), wanted, 0)
        assert got.item() == pytest.approx(cosine, abs=5.1e-4)


@each_placement
@each_estimator
@pytest.mark.parametrize("last", [0.5, 0.0])
def test_a_masked_action_is_never_sampled_and_has_gradient_zero(name, placement, last):
    logits = [0.4, -0.3, -INF]
    q = [0.3 * (1 - last) / 0.5, 0.2 * (1 - last) / 0.5, last]
    got = expected_gradient(name, tensor(logits), q, placement)
    np.testing.assert_allclose(got, by_hand(name, logits, q, placement), atol=1e-12)
    assert got[2] == 0


def test_the_callers_tensors_keep_their_numbers_graph_and_gradient():
    logits, q = tensor([1.0, 0.0, -1.0], grad=True), tensor([0.2, 0.3, 0.5])
    expected_gradient("k3", logits, q, "loss").zero_()
    expected_gradient("k3", 2 * logits, q, "reward")
    assert logits.tolist() == [1.0, 0.0, -1.0] and logits.grad is None
    assert logits.requires_grad and not q.requires_grad
    assert q.tolist() == [0.2, 0.3, 0.5]


# --- refusals -----------------------------------------------------------------


@each_estimator
@each_library
def test_a_log_ratio_that_is_not_finite_is_refused(lib, name):
    for bad in (NAN, INF, -INF):
        with pytest.raises(
            ValueError, match=rf"^log_ratio\[1, 0\] is {bad}; allowed: finite"
        ):
            estimate(name, lib([[0.0, 1.0], [bad, 0.0]]))


@pytest.mark.parametrize(
    "name, inside, outside",
    [
        ("k3", (-88.0, -709.0), (-89.0, -710.0)),
        ("k3", (1e30, 1e300), None),
        ("k2", (1e19, 1e154), (1e20, 1e155)),
        ("k2", (-1e19, -1e154), (-1e20, -1e155)),
    ],
)
@each_library
def test_what_would_overflow_is_refused_and_not_capped(lib, name, inside, outside):
    narrow = lib.dtype == "float32"
    near = inside[0] if narrow else inside[1]
    got = estimate(name, lib([0.0, near]))
    assert np.isfinite(plain(got)).all()
    right = exact_k3(near) if name == "k3" else near / 2 * near
    assert float(got[1]) == pytest.approx(right, rel=2e-5)
    if outside:
        far = outside[0] if narrow else outside[1]
        seen = re.escape(f"log_ratio[1] is {far:.7g}; allowed: at ")
        with pytest.raises(ValueError, match=f"^{seen}(least -|most 1e)"):
            estimate(name, lib([0.0, far]))


@each_library
def test_an_answer_the_policy_forgot_is_refused_by_k3_in_float32(lib):
    x = log_ratio(lib([-101.0]), lib([-1.0]))  # log q - log p = 100
    if lib.dtype == "float64":
        lib.check(k3(x), [exact_k3(-100)])
    else:
        with pytest.raises(ValueError, match="is -100; allowed: at least -88"):
            k3(x)


@each_estimator
@pytest.mark.parametrize(
    "bad, seen",
    [
        ([], "empty"),
        (np.ones((2, 0)), "empty"),
        ([[1.0], [1.0, 2.0]], "no array"),
        (["a"], "of dtype <U1"),
        (None, "of dtype object"),
        (1j, "of dtype complex128"),
        (np.float16([1]), "of dtype float16"),
        (torch.ones(2).half(), "of dtype float16"),
        (torch.ones(2).bfloat16(), "of dtype bfloat16"),
    ],
)
def test_what_is_no_array_of_real_numbers_is_refused(name, bad, seen):
    with pytest.raises(ValueError, match=f"^log_ratio is {seen}.*; allowed: "):
        estimate(name, bad)


@pytest.mark.parametrize(
    "bad", ["k4", "K3", "", "k1 ", None, 1, b"k1", ["k1"], np.ones(2)]
)
def test_an_unknown_estimator_is_refused_with_the_three_that_there_are(bad):
    message = re.escape(f"name is {bad!r}; allowed: k1, k2, k3")
    with pytest.raises(ValueError, match=f"^{message}$"):
        estimate(bad, [0.1])
    with pytest.raises(ValueError, match=f"^{message}$"):
        expected_gradient(bad, LOGITS, Q, "loss")


@pytest.mark.parametrize("bad", ["Loss", "penalty", None, 0, ["loss"]])
def test_an_unknown_placement_is_refused_with_the_three_that_there_are(bad):
    message = re.escape(f"placement is {bad!r}; allowed: ")
    with pytest.raises(ValueError, match=f"^{message}loss, reward, weighted_loss$"):
        expected_gradient("k1", LOGITS, Q, bad)


@pytest.mark.parametrize(
    "logits, q, seen",
    [
        (np.log(P), Q, "logits is no torch tensor"),
        (np.log(P).tolist(), Q, "logits is no torch tensor"),
        (LOGITS[None], Q, "logits is no torch tensor of one axis"),
        (tensor(1.0), Q, "logits is no torch tensor of one axis"),
        (tensor([NAN, 0.0]), Q, r"logits\[0\] is nan"),
        (tensor([0.0, INF]), Q, r"logits\[1\] is inf"),
        (tensor([-INF, -INF]), Q, "the largest of logits is -inf"),
        (LOGITS.half(), Q, "logits is of dtype float16"),
        (torch.ones(0), Q, "logits is empty"),
        (LOGITS, np.array(Q), "q a NumPy array"),
        (LOGITS, [0.7, 0.2], "the sum of q is 0.9"),
        (LOGITS, [1.2, -0.2], r"q\[1\] is -0.2"),
        (LOGITS, [1.0, 0.0], r"q\[1\] is 0"),
        (LOGITS, [NAN, 1.0], r"q\[0\] is nan"),
        (LOGITS, [0.2, 0.3, 0.5], r"q is of shape \(3,\)"),
        (LOGITS, [Q, Q], r"q is of shape \(2, 2\)"),
        (LOGITS, [1.0], r"q is of shape \(1,\)"),
        (LOGITS, 1.0, r"q is of shape \(\)"),
        (LOGITS, None, "q is of dtype object"),
        (LOGITS, [], "q is empty"),
        (LOGITS, tensor(Q).bfloat16(), "q is of dtype bfloat16"),
    ],
)
def test_what_gives_no_pair_of_distributions_is_refused(logits, q, seen):
    for name in ESTIMATORS:
        with pytest.raises(ValueError, match=f"^.*{seen}.*; allowed: "):
            expected_gradient(name, logits, q, "loss")


def test_an_action_too_unlikely_for_k3_is_refused_and_not_dropped():
    far = tensor([0.0, -800.0])
    with pytest.raises(ValueError, match=r"log_ratio\[1\] is -799.3"):
        expected_gradient("k3", far, Q, "loss")
    assert expected_gradient("k2", far, Q, "loss").tolist() == [0, 0]


# --- without torch ------------------------------------------------------------

WITHOUT_TORCH = """
for name in ("k1", "k2", "k3"):
    print(estimators.estimate(name, [-3.0])[0])
try:
    estimators.expected_gradient("k1", [0.0, 0.0], [.5, .5], "loss")
except ImportError as error:
    assert error.__suppress_context__
    print(error)
"""


def test_without_torch_the_values_work_and_gradients_say_what_is_missing():
    *got, said = printed_without_torch("estimators", WITHOUT_TORCH).splitlines()
    assert [float(x) for x in got] == pytest.approx([-3, 4.5, exact_k3(-3)])
    assert said == f"expected_gradient needs torch: pip install {torch_pin()}"
