"""KL divergence, shaped reward and the tilted optimum, by a second route each."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import LIBRARIES, each_library, plain, quick

from rlnb.kl import (
    entropy,
    kl_divergence,
    log_ratio,
    regularized_objective,
    shaped_reward,
    tilted_optimum,
)

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan
P, Q = [0.8, 0.2], [0.5, 0.5]


def distributions(size, least=0):
    weights = st.lists(st.integers(least, 9), min_size=size, max_size=size)
    return weights.filter(any).map(lambda w: [x / sum(w) for x in w])


pairs = st.integers(1, 5).flatmap(
    lambda n: st.tuples(distributions(n), distributions(n, least=1))
)
tasks = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        distributions(n),
        distributions(n, least=1),
        st.lists(st.floats(-3, 3), min_size=n, max_size=n),
        st.floats(0.05, 5),
    )
)


def kl_loop(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


# --- log-ratios ---------------------------------------------------------------


@each_library
def test_log_ratio_of_the_standard_pair_may_be_negative(lib):
    got = log_ratio(lib(np.log(P)), lib(np.log(Q)))
    lib.check(got, [math.log(1.6), math.log(0.4)])
    lib.check(got, [0.470004, -0.916291], slack=1e-6)


@each_library
def test_log_ratio_of_one_sampled_outcome_alone_is_legal(lib):
    lib.check(log_ratio(lib(math.log(0.2)), lib(math.log(0.5))), math.log(0.4))


@each_library
def test_an_outcome_the_reference_cannot_produce_has_log_ratio_inf(lib):
    lib.check(log_ratio(lib([-1.0, -INF]), lib([-INF, -1.0])), [INF, -INF])


@each_library
def test_minus_inf_on_both_sides_is_refused(lib):
    with pytest.raises(ValueError, match=r"logp\[1\] is -inf; allowed: .*logq"):
        log_ratio(lib([-1.0, -INF]), lib([-2.0, -INF]))


@each_library
def test_very_small_probabilities_are_legal(lib):
    lib.check(log_ratio(lib([-1e4, -1.0]), lib([-1.0, -1e4])), [-9999.0, 9999.0])


@pytest.mark.parametrize("name", ["logp", "logq"])
def test_probabilities_passed_as_log_probabilities_are_refused(name):
    logs = {"logp": [-0.1, -0.2], "logq": [-0.3, -0.4], name: [-0.1, 0.2]}
    with pytest.raises(ValueError, match=rf"{name}\[1\] is 0.2; allowed: .*at most 0"):
        log_ratio(**logs)


def test_bfloat16_log_probs_are_refused_since_their_difference_is_lost():
    logp, logq = torch.tensor([-12.34]), torch.tensor([-12.30])
    assert (logp.bfloat16() - logq.bfloat16()).item() != pytest.approx(-0.04, abs=0.01)
    assert log_ratio(logp, logq).item() == pytest.approx(-0.04, abs=1e-5)
    with pytest.raises(ValueError, match="logp is of dtype bfloat16; allowed: float32"):
        log_ratio(logp.bfloat16(), logq.bfloat16())


# --- divergence and entropy -----------------------------------------------------


@pytest.mark.parametrize(
    "p, q, right",
    [
        (P, Q, 0.192744757),
        (Q, P, 0.223143551),
        ([0.34, 0.33, 0.33], [0.5, 0.3, 0.2], 0.065583),
        ([1.0, 0.0], Q, 0.693147),
        (P, [1.0, 0.0], INF),
        ([1.0, 0.0], [1.0, 0.0], 0.0),
        ([0.0, 1.0], [1.0, 0.0], INF),
        ([1.0], [1.0], 0.0),
        ([1.0, 0.0], [5e-324, 1.0], 744.440072),
    ],
)
@each_library
def test_kl_of_small_examples(lib, p, q, right):
    if lib.dtype == "float32" and 5e-324 in q:
        right = INF  # no such number in float32
    lib.check(kl_divergence(lib(p), lib(q)), right, slack=1e-6)


@quick
@given(pairs)
def test_kl_is_the_plain_loop_and_is_cross_entropy_minus_entropy(pair):
    p, q = pair
    cross_entropy = -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
    assert kl_divergence(p, q) == pytest.approx(kl_loop(p, q), abs=1e-12)
    assert kl_divergence(p, q) == pytest.approx(cross_entropy - entropy(p), abs=1e-12)


@quick
@given(pairs)
def test_kl_is_zero_only_between_equals_and_positive_otherwise(pair):
    p, q = pair
    assert kl_divergence(p, p) == 0
    if np.allclose(p, q, atol=1e-9):
        assert abs(kl_divergence(p, q)) < 1e-12
    else:
        assert kl_divergence(p, q) > 1e-6


@quick
@given(pairs)
def test_all_libraries_agree(pair):
    for lib in LIBRARIES:
        lib.check(kl_divergence(*map(lib, pair)), kl_loop(*pair))


@each_library
def test_missing_support_is_infinite_only_in_its_own_row(lib):
    q = lib([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    lib.check(kl_divergence(lib(P), q), [kl_loop(P, Q), INF, INF])
    lib.check(kl_divergence(lib([1.0, 0.0]), q), [math.log(2), 0.0, INF])


@each_library
def test_outcomes_may_lie_along_any_axis(lib):
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet([1, 1, 1], (2, 4)) for _ in "pq")
    right = [[kl_loop(*pq) for pq in zip(*rows, strict=True)] for rows in zip(p, q)]
    for axis in (0, 1, 2, -1, -2, -3):
        moved = (lib(np.moveaxis(x, -1, axis)) for x in (p, q))
        lib.check(kl_divergence(*moved, axis=axis), right)
        lib.check(
            entropy(lib(np.moveaxis(p, -1, axis)), axis),
            [[-sum(x * math.log(x) for x in row) for row in rows] for rows in p],
        )


@each_library
def test_one_reference_serves_a_batch_along_a_negative_axis(lib):
    p, q = np.array([P, Q, [1, 0]]).T, [[0.5], [0.5]]
    right = [kl_loop(row, Q) for row in p.T]
    lib.check(kl_divergence(lib(p), lib(q), axis=-2), right)
    lib.check(kl_divergence(lib(np.stack([p] * 2)), lib(q), axis=-2), [right] * 2)


def test_a_positive_axis_means_two_things_in_arrays_of_different_rank():
    columns = np.full((3, 3), 1 / 3)
    with pytest.raises(ValueError, match="axis is 0; allowed: -1, -2"):
        kl_divergence([0.2, 0.3, 0.5], columns, axis=0)


@pytest.mark.parametrize("axis", [1, -2, None, "last"])
def test_an_axis_that_is_not_there_is_refused(axis):
    with pytest.raises(ValueError, match=f"axis is {axis!r}; allowed: an axis of p"):
        kl_divergence(P, Q, axis)


@pytest.mark.parametrize(
    "bad, seen",
    [
        ([0.7, 0.2], r"the sum of \w is 0.9;"),
        ([1.2, -0.2], r"\w\[1\] is -0.2;"),
        ([0.8, 0.3], r"the sum of \w is 1.1;"),
        ([0.0, 0.0], r"the sum of \w is 0;"),
        ([INF, 0.0], r"the sum of \w is inf;"),
        ([NAN, 1.0], r"\w\[0\] is nan;"),
        ([[0.5, 0.5], [0.5, 0.4]], r"the sum of \w\[1\] is 0.9;"),
        ([-0.5, -0.5], r"\w\[0\] is -0.5;"),
        (1.0, r"axis is -1;"),
    ],
)
@each_library
def test_what_is_no_distribution_is_refused(lib, bad, seen):
    for wrong in (
        lambda x: kl_divergence(x, lib(Q)),
        lambda x: kl_divergence(lib(P), x),
        lambda x: entropy(x),
        lambda x: regularized_objective(x, lib(Q), lib([1, 0]), 0.1),
        lambda x: regularized_objective(x, None, lib([1, 0]), 0),
        lambda x: regularized_objective(lib(P), x, lib([1, 0]), 0.1),
        lambda x: tilted_optimum(x, lib([1, 0]), 0.1),
    ):
        with pytest.raises(ValueError, match=seen + " allowed: "):
            wrong(lib(bad))


@pytest.mark.parametrize("p, q", [([1.0], Q), (P, [1.0]), (P, [0.2, 0.3, 0.5])])
def test_distributions_over_other_outcomes_do_not_broadcast(p, q):
    with pytest.raises(ValueError, match=r"outcomes; allowed: |shapes do not fit"):
        kl_divergence(p, q)


@pytest.mark.parametrize("xp", [np, torch])
def test_a_float32_softmax_over_50_000_tokens_is_a_distribution(xp):
    rng = np.random.default_rng(0)
    p, q = (
        torch.softmax(torch.tensor(rng.normal(0, 5, 50_000).astype("f4")), -1)
        for _ in "pq"
    )
    right = kl_divergence(p.double() / p.double().sum(), q.double() / q.double().sum())
    p, q = (p.numpy(), q.numpy()) if xp is np else (p, q)
    assert float(kl_divergence(p, q)) == pytest.approx(right.item(), rel=1e-4)


@pytest.mark.parametrize("logits", [[1.0, 0.0, -2.0], [0.0, 0.0, -INF]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_by_logits_are_the_closed_forms_also_at_probability_zero(
    logits, dtype
):
    z = torch.tensor(logits, dtype=dtype, requires_grad=True)
    p, q = torch.softmax(z, -1), torch.tensor([0.2, 0.3, 0.5], dtype=dtype)
    (d_kl,) = torch.autograd.grad(kl_divergence(p, q), z, retain_graph=True)
    (d_entropy,) = torch.autograd.grad(entropy(p), z)
    numbers = p.detach().tolist()
    kl, h = kl_loop(numbers, q.tolist()), -kl_loop(numbers, [1] * 3)
    right_kl = [a * (math.log(a / b) - kl) if a else 0 for a, b in zip(numbers, q)]
    right_entropy = [-a * (math.log(a) + h) if a else 0 for a in numbers]
    np.testing.assert_allclose(d_kl, right_kl, atol=1e-6)
    np.testing.assert_allclose(d_entropy, right_entropy, atol=1e-6)


def test_the_entropy_of_two_live_logits_is_log_two():
    p = torch.softmax(torch.tensor([0.0, 0.0, -INF], dtype=torch.float64), -1)
    assert entropy(p).item() == pytest.approx(math.log(2), abs=1e-15)


def test_gradients_by_p_and_q_are_finite_where_either_is_zero():
    p = torch.tensor([[1.0, 0.0, 0.0], P + [0.0]], requires_grad=True)
    q = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    value = kl_divergence(p, q)
    assert value.tolist() == pytest.approx([math.log(2), INF])
    value.sum().backward()
    assert torch.isfinite(p.grad).all() and torch.isfinite(q.grad).all()
    assert p.grad[0].tolist() == pytest.approx([math.log(2) + 1, 0, 0])
    assert q.grad[0].tolist() == pytest.approx([-2, 0, 0])


# --- shaped reward and objective --------------------------------------------------


@each_library
def test_the_penalty_lowers_the_reward_of_what_became_likelier(lib):
    got = shaped_reward(lib([1, 1]), log_ratio(lib(np.log(P)), lib(np.log(Q))), 0.2)
    lib.check(got, [0.905999, 1.183258], slack=1e-6)


@each_library
def test_shaped_reward_broadcasts_and_takes_numbers(lib):
    lib.check(shaped_reward(1.0, lib([[0.5], [-0.5]]), 2), [[0.0], [2.0]])


@each_library
def test_an_infinite_log_ratio_costs_everything_unless_beta_is_zero(lib):
    reward, ratio = lib([1.0, 2.0, 3.0]), lib([INF, 0.5, -INF])
    for tiny in (0.1, 1e-40, 1e-300):
        assert plain(shaped_reward(reward, ratio, tiny))[0] == -INF
    lib.check(shaped_reward(reward, ratio, 0), [1.0, 2.0, 3.0])
    lib.check(shaped_reward(1.0, lib([[INF], [0.0]]), 0), [[1.0], [1.0]])


def test_the_gradient_of_an_unpenalised_reward_is_finite():
    ratio = torch.tensor([INF, 1.0], requires_grad=True)
    reward = torch.ones(2, requires_grad=True)
    shaped_reward(reward, ratio, 0).sum().backward()
    assert reward.grad.tolist() == [1, 1]
    assert ratio.grad is None or ratio.grad.tolist() == [0, 0]


@pytest.mark.parametrize(
    "p, reward, beta, right",
    [
        (P, [1, 1], 0.2, 0.961451),
        (P, [1, 0], 0.1, 0.7807255),
        (Q, [1, 0], 0.1, 0.5),
        (P, [1, 0], 0, 0.8),
    ],
)
@each_library
def test_objective_of_the_standard_pair(lib, p, reward, beta, right):
    got = regularized_objective(lib(p), lib(Q), lib(reward), beta)
    lib.check(got, right, slack=1e-6)


@quick
@given(tasks)
def test_the_objective_is_the_expected_shaped_reward(task):
    p, q, reward, beta = task
    with np.errstate(divide="ignore"):
        shaped = shaped_reward(reward, log_ratio(np.log(p), np.log(q)), beta)
    right = sum(a * b for a, b in zip(p, shaped, strict=True) if a)
    assert regularized_objective(p, q, reward, beta) == pytest.approx(right, abs=1e-9)


def test_at_beta_zero_no_reference_is_asked():
    p = torch.tensor(P, requires_grad=True)
    got = regularized_objective(p, None, [1, 0], 0)
    got.backward()
    assert got.item() == pytest.approx(0.8) and p.grad.tolist() == [1, 0]
    assert regularized_objective(P, [1.0, 0.0], [1, 0], 0) == 0.8
    with pytest.raises(ValueError, match="q is of dtype object"):
        regularized_objective(P, None, [1, 0], 0.1)


def test_the_objective_is_minus_inf_without_support():
    assert regularized_objective(P, [1.0, 0.0], [1, 0], 1e-9) == -INF
    assert regularized_objective(np.float32(P), [1.0, 0.0], [1, 0], 1e-300) == -INF


@pytest.mark.parametrize("beta, right", [(0.1, 0.137819), (0, 0.16)])
def test_the_gradient_of_the_objective_by_a_logit(beta, right):
    z = torch.tensor(np.log(P), requires_grad=True)
    regularized_objective(torch.softmax(z, -1), Q, [1, 0], beta).backward()
    assert z.grad[0].item() == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize(
    "p, reward", [([1.0], [1.0, 2.0, 3.0]), (P, [1.0, 2.0, 3.0]), (P, [[1.0], [2.0]])]
)
def test_a_reward_over_other_outcomes_does_not_broadcast(p, reward):
    for function in (regularized_objective, tilted_optimum):
        for beta in (0, 0.1):
            given = [p, p][: 2 if function is regularized_objective else 1]
            with pytest.raises(ValueError, match="reward.*allowed: "):
                function(*given, reward, beta)


# --- tilted optimum -----------------------------------------------------------------


@each_library
def test_the_tilted_optimum_of_the_standard_pair(lib):
    best = tilted_optimum(lib(Q), lib([1, 0]), 0.1)
    lib.check(best, [0.9999546, 4.54e-5], slack=1e-7)
    lib.check(regularized_objective(best, lib(Q), lib([1, 0]), 0.1), 0.930690, 1e-6)


@quick
@given(tasks)
def test_every_other_policy_falls_short_by_beta_times_its_kl_to_the_optimum(task):
    p, q, reward, beta = task
    best = tilted_optimum(q, reward, beta)
    highest = regularized_objective(best, q, reward, beta)
    partition = sum(a * math.exp(r / beta) for a, r in zip(q, reward, strict=True))
    assert highest == pytest.approx(beta * math.log(partition), abs=1e-9)
    if min(best) > 0:
        shortfall = highest - regularized_objective(p, q, reward, beta)
        assert shortfall == pytest.approx(beta * kl_divergence(p, best), abs=1e-9)


def test_a_search_over_all_policies_finds_the_tilted_optimum():
    p = np.linspace(0, 1, 10_001)
    policies = np.stack([p, 1 - p], axis=-1)
    found = policies[np.argmax(regularized_objective(policies, P, [0.3, 1.0], 0.7))]
    np.testing.assert_allclose(found, tilted_optimum(P, [0.3, 1.0], 0.7), atol=1e-4)


@pytest.mark.parametrize("beta", [0, 1e-300, 1e-40, 1e-6])
@each_library
def test_towards_beta_zero_the_best_reachable_outcomes_share_as_in_q(lib, beta):
    q, reward = lib([0.1, 0.3, 0.6, 0.0]), lib([1, 1, 0, 5])
    lib.check(tilted_optimum(q, reward, beta), [0.25, 0.75, 0.0, 0.0])


@each_library
def test_a_large_beta_keeps_the_reference(lib):
    lib.check(tilted_optimum(lib(P), lib([1, -1]), 9e29), P)


@pytest.mark.parametrize("shift", [1e6, -1e6])
@pytest.mark.parametrize("beta", [1e-300, 0.1, 1e3])
@each_library
def test_only_differences_of_rewards_count_and_huge_ones_do_not_overflow(
    lib, beta, shift
):
    right = tilted_optimum(lib(P), lib([0, 1]), beta)
    lib.check(tilted_optimum(lib(P), lib([shift, shift + 1]), beta), right)
    lib.check(tilted_optimum(lib(P), lib([1e30, -1e30]), beta), [1.0, 0.0])


@each_library
def test_the_optimum_of_a_batch_is_that_of_its_rows(lib):
    rewards = [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]
    right = [plain(tilted_optimum(lib(P), lib(r), 0.5)) for r in rewards]
    lib.check(tilted_optimum(lib(P), lib(rewards), 0.5), np.stack(right))
    lib.check(tilted_optimum(lib([P] * 3), lib(rewards), 0.5), np.stack(right))


@pytest.mark.parametrize("beta", [0, 1e-300, 0.1])
def test_gradients_through_the_optimum_are_finite(beta):
    q = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
    reward = torch.tensor([1.0, 0.9, 9.0], requires_grad=True)
    tilted_optimum(q, reward, beta)[0].backward()
    assert torch.isfinite(q.grad).all()
    if beta:
        assert torch.isfinite(reward.grad).all() and reward.grad[2] == 0
    if beta == 0.1:
        share = 1 / (1 + math.exp(-1))
        assert reward.grad[0].item() == pytest.approx(share * (1 - share) / beta)
