"""From tokens to sequences: alignment, masks and sums, by a second route each."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import LIBRARIES, each_library, plain, quick

from rlnb.kl import shaped_reward
from rlnb.sequences import (
    completion_mask,
    masked_mean,
    returns_to_go,
    sequence_log_ratio,
    token_log_probs,
)

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan

tokens = st.lists(
    st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.booleans()), min_size=1
).filter(lambda rows: any(kept for _, _, kept in rows))


# --- completion mask ------------------------------------------------------------


@pytest.mark.parametrize(
    "ids, right",
    [
        ([5, 7, 2, 2, 2], [1, 1, 1, 0, 0]),
        ([5, 7, 8], [1, 1, 1]),
        ([2, 5, 2], [1, 0, 0]),
        ([5, 2, 7], [1, 1, 0]),
        ([[5, 2, 0], [2, 5, 7], [5, 5, 5]], [[1, 1, 0], [1, 0, 0], [1, 1, 1]]),
    ],
)
@pytest.mark.parametrize("kind", [list, np.int64, np.uint8, torch.int64, torch.int32])
def test_the_end_token_counts_and_what_follows_does_not(ids, right, kind):
    xp = torch if isinstance(kind, torch.dtype) else np
    got = completion_mask(ids if kind is list else xp.asarray(ids, dtype=kind), 2)
    assert isinstance(got, torch.Tensor if xp is torch else np.ndarray)
    assert got.dtype == xp.bool
    np.testing.assert_array_equal(plain(got), np.array(right, bool))


@quick
@given(st.lists(st.integers(0, 3), min_size=1))
def test_completion_mask_is_the_plain_loop(ids):
    right, ended = [], False
    for token in ids:
        right.append(not ended)
        ended = ended or token == 3
    assert completion_mask(ids, 3).tolist() == right
    assert completion_mask(torch.tensor(ids), 3).tolist() == right


@pytest.mark.parametrize("xp", [np, torch])
def test_an_end_token_beyond_the_dtype_of_the_ids_matches_nothing(xp):
    ids = xp.asarray([44, 1, 255], dtype=xp.uint8)
    assert completion_mask(ids, 300).tolist() == [True] * 3
    assert completion_mask(ids, -1).tolist() == [True] * 3


@pytest.mark.parametrize("bad", [[1.0, 2.0], [True, False], 3, [[1], [2, 3]], "ab", []])
def test_ids_must_be_integers_along_an_axis(bad):
    with pytest.raises(ValueError, match="ids is .*; allowed: "):
        completion_mask(bad, 2)


# --- sequence log-ratio ---------------------------------------------------------


@each_library
def test_the_end_token_is_part_of_the_sequence(lib):
    mask = completion_mask([5, 2], eos_id=2).tolist()
    got = sequence_log_ratio(lib([-1, -0.2]), lib([-1, -1.2]), mask)
    lib.check(got, 1.0)


@each_library
def test_the_penalty_of_a_sequence_is_of_the_sum_and_not_the_mean(lib):
    ratio = sequence_log_ratio(lib([-0.5, -0.5]), lib([-1, -1]), [1, 1])
    lib.check(shaped_reward(0.0, ratio, 0.1), -0.1)


@each_library
def test_ten_token_ratios_of_1_1_multiply(lib):
    logp, logq = lib([-0.1] * 10), lib([-0.1 - math.log(1.1)] * 10)
    got = sequence_log_ratio(logp, logq, [1] * 10)
    assert math.exp(got) == pytest.approx(2.593742, abs=2e-5)


@quick
@given(tokens)
def test_sequence_log_ratio_is_the_log_of_two_products(rows):
    kept = [(a, b) for a, b, m in rows if m]
    right = math.fsum(a for a, _ in kept) - math.fsum(b for _, b in kept)
    logp, logq, mask = zip(*rows, strict=True)
    for lib in LIBRARIES:
        got = sequence_log_ratio(lib(logp), lib(logq), list(mask))
        lib.check(got, right, slack=1e-9 if lib.dtype == "float64" else 1e-3)


@each_library
def test_what_the_reference_cannot_say_is_infinitely_far(lib):
    logp, logq = lib([[-1, -1], [-1, -INF]]), lib([[-1, -INF], [-1, -1]])
    lib.check(sequence_log_ratio(logp, logq, lib([[1, 1], [1, 1]])), [INF, -INF])


@pytest.mark.parametrize("logp", [[-1.0, -INF], [-INF, -1.0]])
@each_library
def test_a_sequence_that_neither_policy_can_say_is_refused(lib, logp):
    batch = lib([[-1.0, -1.0], logp]), lib([[-1.0, -1.0], [-1.0, -INF]])
    with pytest.raises(ValueError, match=r"logp\[1.* is -inf; allowed: not -inf"):
        sequence_log_ratio(*batch, [[1, 1], [1, 1]])
    live = np.isfinite(logp).tolist()
    lib.check(sequence_log_ratio(lib(logp), lib(logp), live), 0.0)


@each_library
def test_a_sequence_without_tokens_is_refused_with_its_row(lib):
    x = lib([[-1.0, -2.0]] * 3)
    with pytest.raises(ValueError, match=r"number of tokens in mask\[1\] is 0; all"):
        sequence_log_ratio(x, x, [[1, 1], [0, 0], [0, 1]])


def test_values_above_zero_are_no_log_probabilities():
    with pytest.raises(ValueError, match=r"logq\[0, 1\] is 0.2; allowed: "):
        sequence_log_ratio([[-1.0, -1.0]], [[-1.0, 0.2]], [[1, 1]])
    assert sequence_log_ratio([-1.0, 0.2], [-2.0, 0.2], [1, 0]) == 1


# --- masks ------------------------------------------------------------------------

MASKED = {
    "p": lambda x, m: sequence_log_ratio(x, (-np.ones(x.shape)).tolist(), m),
    "q": lambda x, m: sequence_log_ratio((-np.ones(x.shape)).tolist(), x, m),
    "masked_mean": masked_mean,
    "returns_to_go": returns_to_go,
}
each_masked = pytest.mark.parametrize("f", MASKED.values(), ids=MASKED.keys())


@pytest.mark.parametrize("padding", [NAN, INF, -INF, 1e30, -1e30, 0.0])
@each_masked
@each_library
def test_padding_may_hold_anything(lib, f, padding):
    mask = [[1, 1, 0], [0, 1, 0]]
    clean = [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]
    x, right = lib(clean), f(lib(clean), mask)
    filled = lib(np.where(np.array(mask) == 1, clean, padding))
    lib.check(f(filled, mask), plain(right))
    lib.check(x, clean)


@pytest.mark.parametrize("padding", [NAN, INF, -INF, 1e38])
def test_padding_has_gradient_zero_and_leaves_the_others_theirs(padding):
    mask = torch.tensor([True, True, False])
    for f, right in (
        (lambda x: sequence_log_ratio(x, torch.full((3,), -1.0), mask), [1, 1, 0]),
        (lambda x: sequence_log_ratio(torch.full((3,), -1.0), x, mask), [-1, -1, 0]),
        (lambda x: masked_mean(x, mask), [0.5, 0.5, 0]),
        (lambda x: returns_to_go(x, mask).sum(), [1, 2, 0]),
    ):
        x = torch.tensor([-1.0, -2.0, padding], requires_grad=True)
        f(x).backward()
        assert x.grad.tolist() == right


@pytest.mark.parametrize("kind", ["bool", "int64", "uint8", "float32", "float64"])
@each_library
def test_a_mask_of_any_dtype_selects_the_same_and_leaves_the_dtype(lib, kind):
    mask = lib.module.asarray([1, 0, 1], dtype=getattr(lib.module, kind))
    x = lib([-1.0, -2.0, -3.0])
    lib.check(masked_mean(x, mask), -2.0)
    lib.check(returns_to_go(x, mask), [-4.0, 0.0, -3.0])
    lib.check(sequence_log_ratio(x, lib([-4.0] * 3), mask), 4.0)


@pytest.mark.parametrize("bad", [2, 0.5, -1, NAN, INF, -1e4])
@each_masked
def test_a_mask_holds_only_zeros_and_ones(f, bad):
    with pytest.raises(ValueError, match=r"mask\[1\] is .*; allowed: 0 and 1"):
        f(np.array([-1.0, -2.0]), [1, bad])


@pytest.mark.parametrize("mask", [[1], [[1], [0]], [1, 0], [[1, 0, 1]], 1])
@each_masked
def test_a_mask_does_not_broadcast(f, mask):
    with pytest.raises(ValueError, match=r"mask is of shape .* allowed: one shape"):
        f(-np.ones((2, 2)), mask)


@each_masked
def test_one_number_has_no_tokens(f):
    with pytest.raises(ValueError, match=r"mask is of shape \(\)"):
        f(np.array(-1.0), 1)


# --- mean and returns -------------------------------------------------------------


@each_library
def test_the_mean_is_over_all_tokens_and_not_a_mean_of_means(lib):
    loss, mask = [[1, 9, 9], [0, 0, 0]], [[1, 0, 0], [1, 1, 1]]
    lib.check(masked_mean(lib(loss), mask), 0.25)
    parts = [float(masked_mean(lib(v), m)) for v, m in zip(loss, mask, strict=True)]
    assert sum(parts) / 2 == 0.5


@each_library
def test_a_mean_over_no_token_is_refused(lib):
    with pytest.raises(ValueError, match="mask is 0 everywhere; allowed: at least one"):
        masked_mean(lib([1.0, 2.0]), [0, 0])


@each_library
def test_returns_stop_at_the_end_of_the_sequence(lib):
    lib.check(returns_to_go(lib([1.5, 1, 2, 2]), [1, 1, 0, 0]), [2.5, 1, 0, 0])


@quick
@given(st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=1))
def test_returns_to_go_are_the_plain_loop(rows):
    right = [
        m * sum(r for r, kept in rows[t:] if kept) for t, (_, m) in enumerate(rows)
    ]
    rewards, mask = map(list, zip(*rows, strict=True))
    for lib in LIBRARIES:
        lib.check(returns_to_go(lib(rewards), mask), right)
        lib.check(returns_to_go(lib([rewards] * 2), [mask] * 2), [right] * 2)


@each_library
def test_a_sequence_of_padding_has_returns_zero(lib):
    lib.check(
        returns_to_go(lib([[NAN, 1], [1, 1]]), [[0, 0], [1, 1]]), [[0, 0], [2, 1]]
    )


# --- token log-probabilities --------------------------------------------------------


@each_library
def test_row_t_scores_token_t_plus_1(lib):
    rows = lib(np.log([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.4, 0.3, 0.3]]))
    lib.check(token_log_probs(rows, [0, 1, 2]), np.log([0.2, 0.3]))
    lib.check(token_log_probs(rows[:2], [0, 1, 2]), np.log([0.2, 0.3]))


@pytest.mark.parametrize("temperature", [1.0, 0.6, 3])
@each_library
def test_token_log_probs_are_log_softmax_and_gather(lib, temperature):
    rng = np.random.default_rng(0)
    logits, ids = rng.normal(0, 3, (2, 4, 5, 7)), rng.integers(0, 7, (2, 4, 5))
    scores = torch.log_softmax(torch.tensor(logits) / temperature, -1)[..., :-1, :]
    right = scores.gather(-1, torch.tensor(ids)[..., 1:, None])[..., 0]
    ids = torch.tensor(ids) if lib.module is torch else ids
    lib.check(token_log_probs(lib(logits), ids, temperature), plain(right))
    lib.check(token_log_probs(lib(logits[..., :-1, :]), ids, temperature), plain(right))


@each_library
def test_the_temperature_of_the_sampler(lib):
    logits = lib([[2, 1, 0]])
    lib.check(token_log_probs(logits, [0, 0], 0.6), [-0.202573], slack=1e-6)
    right = 2 - math.log(math.exp(2) + math.exp(1) + 1)
    lib.check(token_log_probs(logits, [0, 0]), [right])


def test_the_probabilities_of_all_completions_sum_to_one():
    logits = np.random.default_rng(0).normal(size=(3, 3))
    paths = [(0, *path) for path in itertools.product(range(3), repeat=3)]
    total = sum(math.exp(token_log_probs(logits, path).sum()) for path in paths)
    assert total == pytest.approx(1, abs=1e-12)


def test_the_gradient_is_one_hot_minus_softmax_also_beside_masked_logits():
    logits = torch.tensor([[1.0, 2.0, -INF], [NAN] * 3], requires_grad=True)
    (got,) = torch.autograd.grad(token_log_probs(logits, [7, 1], 0.5).sum(), logits)
    p = 1 / (1 + math.exp(-2))
    assert got[0].tolist() == pytest.approx([-(1 - p) * 2, (1 - p) * 2, 0])
    assert got[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("hidden", [-INF, float(np.finfo("f4").min)])
@each_library
def test_a_hidden_logit_is_a_token_of_probability_zero(lib, hidden):
    got = token_log_probs(lib([[0, 0, hidden]] * 3), [0, 1, 2], temperature=0.6)
    lib.check(got, [-math.log(2), -INF])


@pytest.mark.parametrize("top", [1e4, -1e4])
@each_library
def test_large_logits_keep_their_digits(lib, top):
    got = token_log_probs(lib([[top, top - 1], [0, -1e4]]), [0, 1, 1])
    lib.check(got, [-1 - math.log(1 + math.exp(-1)), -1e4])


@pytest.mark.parametrize("bad", [NAN, INF])
@each_library
def test_logits_that_are_no_scores_are_refused(lib, bad):
    with pytest.raises(ValueError, match=r"logits\[0, 1\] is (nan|inf); allowed: "):
        token_log_probs(lib([[0, bad]]), [0, 1])
    with pytest.raises(ValueError, match=r"largest logit of\[1, 0\] is -inf; allowed"):
        token_log_probs(lib([[0, 0], [-INF, -INF]]), [0, 1, 1])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16, np.float16], ids=str)
def test_half_precision_logits_are_computed_in_float32(half):
    xp = np if half is np.float16 else torch
    logits = xp.asarray([[12.5, 0.125, 3.0]], dtype=half)
    got = token_log_probs(logits, [0, 1])
    assert got.dtype == xp.float32
    right = 0.125 - math.log(math.exp(12.5) + math.exp(0.125) + math.exp(3))
    assert got.tolist() == pytest.approx([right], abs=1e-6)


@pytest.mark.parametrize("kind", ["int64", "int32", "int16", "uint8"])
@pytest.mark.parametrize("xp", [np, torch])
def test_ids_of_any_integer_dtype(xp, kind):
    ids = xp.asarray([0, 1, 0], dtype=getattr(xp, kind))
    got = token_log_probs(xp.zeros((3, 2)), ids)
    np.testing.assert_allclose(got, -math.log(2), rtol=1e-6)


@pytest.mark.parametrize(
    "ids, seen",
    [
        ([0, 3], r"ids\[0\] is 3; allowed: 0 to 2"),
        ([0, -1], r"ids\[0\] is -1; allowed: 0 to 2"),
        ([0, -100], r"ids\[0\] is -100; allowed: 0 to 2"),
        ([0.0, 1.0], "ids is of dtype float64; allowed: integers"),
        ([True, False], "ids is of dtype bool; allowed: integers"),
        ([0], r"ids is of shape \(1,\); allowed: at least 2"),
        (1, r"ids is of shape \(\); allowed: at least 2"),
        ([0, 1, 2, 0], r"logits is of shape \(2, 3\) beside ids \(4,\)"),
        ([[0, 1]], r"logits is of shape \(2, 3\) beside ids \(1, 2\)"),
        (torch.tensor([0, 1]), "ids is .*Tensor.*; allowed: an array as"),
        (None, "ids is of dtype object; allowed: real"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids, seen):
    with pytest.raises(ValueError, match=seen):
        token_log_probs(np.zeros((2, 3)), ids)


def test_a_batch_of_logits_does_not_broadcast_over_ids():
    with pytest.raises(ValueError, match=r"logits is of shape \(1, 2, 3\) beside"):
        token_log_probs(np.zeros((1, 2, 3)), [[0, 1], [0, 1]])
    with pytest.raises(ValueError, match="ids is .*ndarray.*; allowed: an array as"):
        token_log_probs(torch.zeros(2, 3), np.array([0, 1]))


def test_the_first_token_is_scored_by_nothing_and_may_be_any():
    assert token_log_probs(np.zeros((2, 3)), [-100, 1]) == pytest.approx(-math.log(3))
