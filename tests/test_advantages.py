"""Baselines by their definitions and over all groups; GAE by its double sum."""

import itertools
import math
import re
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import LIBRARIES, each_library, plain, printed_without_torch, quick

from rlnb.advantages import gae, group_mean, group_standardized, leave_one_out

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan
P, Q, R, BETA = np.array([0.8, 0.2]), 0.5, np.array([1.0, 0.0]), 0.1
RETURNS = R - BETA * np.log(P / Q)
SCORES = np.array([0.2, -0.8])  # grad log p by logit 1 of either outcome
GRADIENT = 0.137819
BY_GROUP = (leave_one_out, group_mean, group_standardized)
each_by_group = pytest.mark.parametrize("function", BY_GROUP)

groups = st.tuples(st.integers(1, 4), st.integers(2, 6)).flatmap(
    lambda shape: st.lists(
        st.lists(st.floats(-9, 9), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


def definition(function, row, eps=1e-4):
    """One group, one sample after the other, in plain Python."""
    n, mean = len(row), math.fsum(row) / len(row)
    if function is leave_one_out:
        return [
            x - math.fsum(row[:i] + row[i + 1 :]) / (n - 1) for i, x in enumerate(row)
        ]
    scale = 1.0
    if function is group_standardized:
        scale = statistics.stdev(row) + eps
    return [(x - mean) / scale for x in row]


def all_groups(n, p=P):
    """Every group of n outcomes, one a row, and its probability."""
    outcomes = np.array(list(itertools.product(range(len(p)), repeat=n)))
    return outcomes, p[outcomes].prod(-1)


def moments(n, function):
    """Mean and variance of the gradient from n samples, by enumeration."""
    outcomes, weights = all_groups(n)
    advantages = function(RETURNS[outcomes])
    gradients = (advantages * SCORES[outcomes]).mean(-1)
    mean = weights @ gradients
    return mean, weights @ (gradients - mean) ** 2


# --- groups -------------------------------------------------------------------


@each_by_group
def test_each_group_is_its_definition_whatever_stands_beside_it(function):
    @quick
    @given(groups)
    def check(returns):
        right = [definition(function, row) for row in returns]
        for lib in LIBRARIES:
            narrow = lib.dtype == "float32"
            if function is group_standardized and narrow:
                if min(map(statistics.stdev, returns)) > 0.1:
                    lib.check(function(lib(returns)), right, 1e-4)
            else:
                slack = 1e-5 if narrow else 1e-11
                lib.check(function(lib(returns)), right, slack)
        alone = [function([row])[0] for row in returns]
        np.testing.assert_array_equal(function(returns), alone)

    check()


@quick
@given(groups)
def test_leave_one_out_is_the_mean_baseline_stretched(returns):
    n, got = len(returns[0]), leave_one_out(returns)
    np.testing.assert_allclose(got.sum(-1), 0, atol=1e-12)
    np.testing.assert_allclose(got, n / (n - 1) * group_mean(returns), atol=1e-12)


@quick
@given(groups, st.floats(-9, 9), st.floats(-9, 9))
def test_a_shift_changes_nothing_and_a_factor_stretches(returns, shift, c):
    x, shifts = np.array(returns), shift * np.arange(len(returns))[:, None]
    for function in BY_GROUP[:2]:
        right = function(returns)
        np.testing.assert_allclose(function(x + shifts), right, atol=1e-12)
        np.testing.assert_allclose(function(c * x), c * right, atol=1e-11)
    right = group_standardized(x)
    np.testing.assert_allclose(group_standardized(x + shifts), right, atol=1e-9)
    if abs(c) > 1e-3:
        got = group_standardized(c * x, eps=abs(c) * 1e-4)
        np.testing.assert_allclose(got, math.copysign(1, c) * right, atol=1e-9)


@quick
@given(groups)
def test_standardized_groups_have_mean_zero_and_a_spread_just_below_one(returns):
    for row, x in zip(group_standardized(returns), returns, strict=True):
        spread = statistics.stdev(x)
        assert row.sum() == pytest.approx(0, abs=1e-9)
        assert statistics.stdev(row.tolist()) == pytest.approx(
            spread / (spread + 1e-4), abs=1e-9
        )


@pytest.mark.parametrize("x", [0.1, 0.3, -7.7, 1e30, 0.0])
@pytest.mark.parametrize("n", [2, 3, 7, 64])
@each_library
def test_equal_returns_leave_exactly_zero(lib, n, x):
    for function in BY_GROUP:
        got = function(lib([[x] * n, list(range(n))]))
        assert plain(got[0]).tolist() == [0] * n
        assert np.isfinite(plain(got)).all()
        assert (plain(got[1]) != 0).sum() >= n - 1


@pytest.mark.parametrize("eps", [1e-4, 1e-29, 1e-300])
@each_library
def test_equal_returns_leave_zero_however_small_eps_is(lib, eps):
    got = group_standardized(lib([[0.1] * 7, [0.0, 1.0] + [0.5] * 5]), eps)
    lib.check(got[0], [0.0] * 7)
    lib.check(got[1], definition(group_standardized, [0.0, 1.0] + [0.5] * 5, eps))


@pytest.mark.parametrize(
    "function, returns, right",
    [
        # prompts are not compared with each other
        (leave_one_out, [[10, 12], [0, 2]], [[-2, 2], [-2, 2]]),
        (group_mean, [[10, 12], [0, 2]], [[-1, 1], [-1, 1]]),
        # three of eight are right
        (leave_one_out, [[1] * 3 + [0] * 5], [[0.714286] * 3 + [-0.428571] * 5]),
        (group_standardized, [[1] * 3 + [0] * 5], [[1.207381] * 3 + [-0.724429] * 5]),
        # the same reward 1, in an easy task and in a hard one
        (
            group_mean,
            [[1] * 9 + [0], [1] + [0] * 9],
            [[0.1] * 9 + [-0.9], [0.9] + [-0.1] * 9],
        ),
    ],
)
@each_library
def test_known_groups(lib, function, returns, right):
    lib.check(function(lib(returns)), right, slack=1e-6)


@each_library
def test_eps_is_added_to_the_deviation_of_n_minus_one(lib):
    got = group_standardized(lib([[0.0, 2.0, 4.0]]), eps=2)
    lib.check(got, [[-0.5, 0.0, 0.5]])
    lib.check(
        group_standardized(lib([[0.0, 2.0, 4.0]])), [[-2 / 2.0001, 0, 2 / 2.0001]]
    )
    eps = lib(2.0) if lib.module is torch else np.float32(2)
    lib.check(group_standardized(lib([[0.0, 2.0, 4.0]]), eps), plain(got))


@each_by_group
@each_library
def test_no_group_is_changed_and_no_result_is_a_view_of_one(lib, function):
    returns = lib([[1.0, 0.0, 4.0], [2.0, 2.0, 2.0]])
    got = function(returns)
    assert not np.shares_memory(plain(got), plain(returns))
    got[...] = 9
    lib.check(returns, [[1.0, 0.0, 4.0], [2.0, 2.0, 2.0]])


@each_by_group
def test_integers_and_booleans_become_floating(function):
    right = function([[1.0, 0.0, 0.0]])
    for kind in (bool, int, np.int32):
        got = function(np.array([[1, 0, 0]], kind))
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, right)
    assert function(torch.tensor([[True, False]])).dtype == torch.float32


# --- what a baseline does to the gradient, over all groups ----------------------


@pytest.mark.parametrize(
    "n, scale", [(2, 0.8208), (3, 1.3403), (4, 1.6664), (5, 1.8934)]
)
def test_only_leave_one_out_leaves_the_expected_gradient_as_it_is(n, scale):
    exact = P @ (RETURNS * SCORES)
    assert exact == pytest.approx(GRADIENT, abs=1e-6)
    assert moments(n, lambda x: x)[0] == pytest.approx(exact, abs=1e-12)
    assert moments(n, leave_one_out)[0] == pytest.approx(exact, abs=1e-12)
    shrunk, _ = moments(n, group_mean)
    assert shrunk == pytest.approx((n - 1) / n * exact, abs=1e-12)
    scaled, _ = moments(n, group_standardized)
    assert scaled / exact == pytest.approx(scale, abs=5e-5)


@quick
@given(
    st.integers(2, 3),
    st.lists(st.tuples(st.integers(1, 9), st.floats(-5, 5)), min_size=3, max_size=3),
)
def test_that_holds_for_three_outcomes_of_any_policy_and_return(n, outcomes):
    weights, returns = np.array(outcomes).T
    p = weights / weights.sum()
    scores = np.eye(3) - p
    exact = (p * returns) @ scores
    drawn, chance = all_groups(n, p)

    def expected(function):
        products = function(returns[drawn])[..., None] * scores[drawn]
        return chance @ products.mean(1)

    np.testing.assert_allclose(expected(leave_one_out), exact, atol=1e-12)
    np.testing.assert_allclose(expected(group_mean), (n - 1) / n * exact, atol=1e-12)


def test_the_standard_deviation_gives_each_prompt_a_weight_of_its_own():
    # one gradient is 0.1 of the other, and the division hides it
    easy, hard = np.array([[1.0, 0.0, 0.0, 1.0], [0.1, 0.0, 0.0, 0.1]])
    plain_easy, plain_hard = leave_one_out([easy, hard])
    np.testing.assert_allclose(plain_hard, 0.1 * plain_easy)
    scaled_easy, scaled_hard = group_standardized([easy, hard])
    np.testing.assert_allclose(scaled_hard, scaled_easy, rtol=0.002)


def test_leave_one_out_need_not_lower_the_variance():
    assert moments(4, lambda x: x)[1] == pytest.approx(0.002786, abs=1e-6)
    assert moments(4, leave_one_out)[1] == pytest.approx(0.013850, abs=1e-6)


def test_far_from_zero_leave_one_out_lowers_the_variance():
    outcomes, weights = all_groups(4)

    def far(function):
        advantages = function(RETURNS[outcomes] + 5)
        gradients = (advantages * SCORES[outcomes]).mean(-1)
        mean = weights @ gradients
        return mean, weights @ (gradients - mean) ** 2

    without, with_it = far(lambda x: x), far(leave_one_out)
    assert without == pytest.approx((GRADIENT, 4.4334 / 4), abs=1e-4)
    assert with_it == pytest.approx(moments(4, leave_one_out), abs=1e-12)
    assert with_it[1] < without[1] / 50


# --- generalised advantage estimates --------------------------------------------

CHAIN = {"rewards": [0, 0, 1], "values": [0.5, 0.6, 0.7]}
rollouts = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-5, 5), min_size=n, max_size=n),
        st.lists(st.floats(-5, 5), min_size=n, max_size=n),
        st.floats(-5, 5),
        st.booleans(),
    )
)
unit = st.floats(0, 1) | st.sampled_from([0, 1])


def double_sum(rewards, values, next_value, terminated, gamma, lam):
    """Equation 16: the discounted TD errors from each step on."""
    after = [*values[1:], 0.0 if terminated else next_value]
    errors = [
        r + gamma * v_next - v
        for r, v, v_next in zip(rewards, values, after, strict=True)
    ]
    return [
        math.fsum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(errors)))
        for t in range(len(errors))
    ]


@pytest.mark.parametrize(
    "terminated, right", [(True, [0.46575, 0.385, 0.3]), (False, [1.18775, 1.145, 1.1])]
)
@each_library
def test_what_ends_and_what_is_cut_off_differ(lib, terminated, right):
    rewards, values = lib(CHAIN["rewards"]), lib(CHAIN["values"])
    got = gae(rewards, values, lib(0.8), terminated, 1, 0.95)
    lib.check(got, right)
    lib.check(gae(rewards, values, 0.8, terminated, 1.0, lib(0.95)), right)
    lib.check(gae(rewards, CHAIN["values"], 0.8, terminated, 1, 0.95), right)


@quick
@given(rollouts, unit, unit)
def test_gae_is_the_double_sum_of_td_errors(rollout, gamma, lam):
    rewards, values, next_value, terminated = rollout
    right = double_sum(*rollout, gamma, lam)
    for lib in LIBRARIES:
        got = gae(lib(rewards), lib(values), lib(next_value), terminated, gamma, lam)
        lib.check(got, right, slack=3e-5 * (lib.dtype == "float32"))


@quick
@given(rollouts, unit)
def test_at_lambda_one_the_critic_only_serves_as_a_baseline(rollout, gamma):
    rewards, values, next_value, terminated = rollout
    returns, following = [], 0.0 if terminated else next_value
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.insert(0, following)
    right = np.array(returns) - values
    np.testing.assert_allclose(gae(*rollout, gamma, 1), right, atol=1e-11)


@quick
@given(rollouts, unit)
def test_at_lambda_zero_it_is_the_td_error(rollout, gamma):
    rewards, values, next_value, terminated = rollout
    after = np.append(values[1:], 0.0 if terminated else next_value)
    right = np.array(rewards) + gamma * after - values
    np.testing.assert_allclose(gae(*rollout, gamma, 0), right, atol=1e-12)


@quick
@given(rollouts, unit, unit)
def test_a_rollout_that_is_cut_goes_on_where_the_next_one_starts(rollout, gamma, lam):
    rewards, values, next_value, terminated = rollout
    whole = gae(*rollout, gamma, lam)
    for cut in range(1, len(rewards)):
        rest = gae(rewards[cut:], values[cut:], next_value, terminated, gamma, lam)
        np.testing.assert_allclose(whole[cut:], rest, atol=1e-12)
        first = gae(rewards[:cut], values[:cut], values[cut], False, gamma, lam)
        faded = (gamma * lam) ** np.arange(cut, 0, -1) * rest[0]
        np.testing.assert_allclose(whole[:cut], first + faded, atol=1e-11)


@pytest.mark.parametrize("lam", [0, 0.5, 0.95, 1])
def test_an_exact_critic_of_a_certain_chain_leaves_no_advantage(lam):
    rewards, gamma = [1.0, -2.0, 0.5, 3.0], 0.9
    values = [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(4)]
    got = gae(rewards, values, None, True, gamma, lam)
    np.testing.assert_allclose(got, 0, atol=1e-15)
    got = gae(rewards[:2], values[:2], values[2], False, gamma, lam)
    np.testing.assert_allclose(got, 0, atol=1e-15)


@pytest.mark.parametrize(
    "unused", [None, NAN, INF, 100.0, "none", [1.0, 2.0], torch.ones(3)]
)
@each_library
def test_after_the_end_the_next_value_is_not_looked_at(lib, unused):
    rewards, values = lib(CHAIN["rewards"]), lib(CHAIN["values"])
    got = gae(rewards, values, unused, True, 1, 0.95)
    lib.check(got, [0.46575, 0.385, 0.3])


@pytest.mark.parametrize("kind", [bool, np.bool_, np.array, torch.tensor])
@pytest.mark.parametrize("terminated", [True, False])
def test_an_environments_own_booleans_say_the_same(kind, terminated):
    got = gae(**CHAIN, next_value=0.8, terminated=kind(terminated), gamma=1, lam=0.95)
    assert got[2] == pytest.approx(0.3 if terminated else 1.1)


@each_library
def test_no_rollout_is_changed_and_no_result_is_a_view_of_one(lib):
    inputs = lib([1.0, 2.0]), lib([3.0, 4.0]), lib(5.0)
    for gamma in (0, 1):
        got = gae(*inputs, False, gamma, 1)
        for x in inputs:
            assert not np.shares_memory(plain(got), plain(x))
        got[...] = 9
    for x, right in zip(inputs, ([1.0, 2.0], [3.0, 4.0], 5.0), strict=True):
        lib.check(x, right)


# --- refusals -----------------------------------------------------------------


@each_by_group
@each_library
def test_a_return_that_is_not_finite_is_refused_by_prompt_and_sample(lib, function):
    for bad in (NAN, INF, -INF):
        with pytest.raises(
            ValueError, match=rf"^returns\[1, 2\] is {bad}; allowed: finite"
        ):
            function(lib([[1, 0, 1], [0, 1, bad]]))


@each_by_group
@pytest.mark.parametrize(
    "bad, seen",
    [
        ([[0.7]], r"of shape \(1, 1\); allowed: .* at least 2"),
        ([[0.7], [0.2]], r"of shape \(2, 1\); allowed: .* at least 2"),
        ([0.7, 0.2], r"of shape \(2,\); allowed: \(prompts, samples\)"),
        (0.7, r"of shape \(\); allowed: "),
        ([[[1.0, 2.0]]], r"of shape \(1, 1, 2\); allowed: "),
        (torch.ones(3, 1), r"of shape \(3, 1\); allowed: "),
        ([], r"empty, shape \(0,\); allowed: "),
        (np.ones((2, 0)), r"empty, shape \(2, 0\); allowed: "),
        ([[1.0, 2.0], [3.0]], "no array .*; allowed: "),
        ([["a", "b"]], "of dtype <U1; allowed: "),
        (None, "of dtype object; allowed: "),
        (np.ones((1, 2), complex), "of dtype complex128; allowed: "),
        (np.ones((1, 2), np.float16), "of dtype float16; allowed: float32"),
        (torch.ones(1, 2).bfloat16(), "of dtype bfloat16; allowed: float32"),
    ],
)
def test_what_is_no_group_of_at_least_two_is_refused(function, bad, seen):
    with pytest.raises(ValueError, match=f"^returns is {seen}"):
        function(bad)


@pytest.mark.parametrize(
    "bad", [0, 0.0, -1e-4, NAN, INF, None, True, "1e-4", [1e-4], 1e30]
)
def test_eps_is_one_number_above_zero(bad):
    message = re.escape(f"eps is {bad!r}; allowed: a finite number > 0")
    with pytest.raises(ValueError, match=f"^{message}"):
        group_standardized([[1.0, 0.0]], bad)


SHAPE = r"shape of rewards, values, next_value is "


@pytest.mark.parametrize(
    "bad, seen",
    [
        ({"rewards": [0, NAN, 1]}, r"rewards\[1\] is nan"),
        ({"values": [0, 1, INF]}, r"values\[2\] is inf"),
        ({"next_value": NAN}, "next_value is nan"),
        ({"next_value": -INF}, "next_value is -inf"),
        ({"next_value": None}, "next_value is of dtype object"),
        ({"rewards": [0, 1]}, SHAPE + r"\(2,\), \(3,\), \(\)"),
        ({"values": [0, 1, 1, 1]}, SHAPE + r"\(3,\), \(4,\), \(\)"),
        ({"values": 0.5}, SHAPE + r"\(3,\), \(\), \(\)"),
        ({"next_value": [0.8]}, SHAPE + r"\(3,\), \(3,\), \(1,\)"),
        (
            {"rewards": [[0, 0, 1]], "values": [[0.5, 0.6, 0.7]]},
            SHAPE + r"\(1, 3\), \(1, 3\), \(\)",
        ),
        ({"rewards": 0, "values": 0}, SHAPE + r"\(\), \(\), \(\)"),
        ({"rewards": [], "values": []}, "rewards is empty"),
        ({"rewards": "abc"}, "rewards is of dtype"),
        ({"rewards": np.float16([0, 0, 1])}, "rewards is of dtype float16"),
        ({"values": torch.ones(3).half()}, "values is of dtype float16"),
        ({"values": torch.ones(3), "rewards": np.ones(3)}, "rewards a NumPy"),
        ({"values": torch.ones(3), "next_value": np.ones(())}, "_value a NumPy"),
        *(({"gamma": x}, "gamma is ") for x in (-0.1, 1.1, NAN, INF, None)),
        *(({"lam": x}, "lam is ") for x in (-0.1, 1.1, NAN, True, [0.9])),
        *(
            ({"terminated": x}, "terminated is " + re.escape(repr(x)))
            for x in (1, 0, 1.0, None, "no", [True], np.array([True]), np.int64(1))
        ),
        ({"terminated": torch.tensor([True, False])}, "terminated is tensor"),
    ],
)
def test_what_is_no_rollout_is_refused(bad, seen):
    arguments = {
        "next_value": 0.8,
        "terminated": False,
        "gamma": 1,
        "lam": 0.95,
        **CHAIN,
        **bad,
    }
    with pytest.raises(ValueError, match=f"^.*{seen}.*; allowed: "):
        gae(**arguments)


def test_the_place_of_a_bad_rate_is_clear_from_its_range():
    with pytest.raises(
        ValueError, match=r"^gamma is 1\.5; allowed: a number in \[0, 1\]$"
    ):
        gae(**CHAIN, next_value=0, terminated=False, gamma=1.5, lam=2)


# --- without torch ------------------------------------------------------------

WITHOUT_TORCH = """
for name in ("leave_one_out", "group_mean", "group_standardized"):
    print(*getattr(advantages, name)([[10, 12]])[0])
print(*advantages.gae([0, 0, 1], [.5, .6, .7], .8, True, 1, .95))
"""


def test_all_works_without_torch():
    printed = printed_without_torch("advantages", WITHOUT_TORCH)
    s = math.sqrt(2) + 1e-4
    right = [-2, 2, -1, 1, -1 / s, 1 / s, 0.46575, 0.385, 0.3]
    assert [float(x) for x in printed.split()] == pytest.approx(right)
