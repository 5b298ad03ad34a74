"""DPO: its loss, its gradient, and where it comes to rest."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import each_library, quick

from rlnb.kl import tilted_optimum
from rlnb.preferences import dpo_loss, implicit_reward

small = st.floats(-20, 20)
betas = st.floats(0.01, 5)


@each_library
def test_a_pair_that_p_has_not_moved_costs_log_2(lib):
    lib.check(dpo_loss(lib([0.0, 1.5]), lib([0.0, 1.5]), 0.1), np.log([2, 2]))


@quick
@given(small, small, betas)
def test_both_orders_of_a_pair_have_probabilities_that_sum_to_1(a, b, beta):
    both = np.exp(-dpo_loss(a, b, beta)) + np.exp(-dpo_loss(b, a, beta))
    assert both == pytest.approx(1)


@quick
@given(small, small, betas)
def test_the_slope_is_beta_times_the_probability_of_the_other_order(a, b, beta):
    chosen = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    dpo_loss(chosen, torch.tensor(b, dtype=torch.float64), beta).backward()
    other = np.exp(-dpo_loss(b, a, beta))
    assert chosen.grad.item() == pytest.approx(-beta * other, abs=1e-12)


@each_library
def test_large_log_ratios_stay_finite(lib):
    got = dpo_loss(lib([3e4, -3e4]), lib([0.0, 0.0]), 1.0)
    lib.check(got, [0.0, 3e4])


@quick
@given(st.floats(0.05, 0.95), st.floats(-2, 2), st.floats(0.1, 3))
def test_the_tilted_optimum_has_the_rewards_as_implicit_ones(q, gap, beta):
    q = np.array([q, 1 - q])
    p = tilted_optimum(q, np.array([gap, 0.0]), beta)
    implicit = implicit_reward(np.log(p) - np.log(q), beta)
    assert implicit[0] - implicit[1] == pytest.approx(gap, abs=1e-9)


@quick
@given(st.floats(-2, 2), st.floats(0.2, 3))
def test_with_bradley_terry_preferences_the_gradient_is_0_there(gap, beta):
    """And by autograd, through a softmax over two logits."""
    q = torch.tensor([0.3, 0.7], dtype=torch.float64)
    rewards = torch.tensor([gap, 0.0], dtype=torch.float64)
    logits = tilted_optimum(q, rewards, beta).log().requires_grad_()
    away = logits.log_softmax(0) - q.log()
    first = torch.sigmoid(rewards[0] - rewards[1])
    loss = first * dpo_loss(away[0], away[1], beta)
    loss = loss + (1 - first) * dpo_loss(away[1], away[0], beta)
    loss.backward()
    assert logits.grad.abs().max() < 1e-9


@pytest.mark.parametrize("beta", [0, -1, float("nan"), float("inf")])
def test_beta_must_be_positive(beta):
    for call in (lambda: dpo_loss(0.0, 0.0, beta), lambda: implicit_reward(0.0, beta)):
        with pytest.raises(ValueError, match="beta is .* allowed: a number > 0"):
            call()


def test_infinite_log_ratios_are_refused_by_name():
    with pytest.raises(ValueError, match=r"rejected\[1\] is -inf"):
        dpo_loss([0.0, 0.0], [0.0, -np.inf], 0.1)
    with pytest.raises(ValueError, match="chosen is nan"):
        dpo_loss(np.nan, 0.0, 0.1)
