"""Lesson 08's pictures say what the formulas say."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import quick

from rlnb.kl import kl_divergence, tilted_optimum
from rlnb.pictures import real_trainers as pictures


def readouts(picture):
    return {r.name: r.value for r in picture.readouts}


@pytest.mark.parametrize("right", range(9))
def test_groups_are_weighted_by_the_inverse_of_their_spread(right):
    picture = pictures.advantages(right)
    rloo, grpo = (bars.y for bars in picture.panels[0].items)
    returns = np.array([1.0] * right + [0.0] * (8 - right))
    others = (returns.sum() - returns) / 7
    np.testing.assert_allclose(rloo, returns - others)
    if 0 < right < 8:
        factor = 7 / 8 / (returns.std(ddof=1) + 1e-4)
        np.testing.assert_allclose(grpo, rloo * factor)
        assert f"{factor:.3g} times" in picture.says
    else:
        assert not grpo.any() and "both give 0" in picture.says


@quick
@given(st.integers(2, 98))
def test_the_gradients_are_those_of_the_two_divergences(percent):
    """By autograd of rlnb.kl, no estimator in sight."""
    p = percent / 100
    logits = torch.tensor([p, 1 - p], dtype=torch.float64).log().requires_grad_()
    q = torch.tensor([0.5, 0.5], dtype=torch.float64)
    softmax = logits.softmax(0)
    pairs = (softmax, q), (q, softmax)
    one, other = (
        torch.autograd.grad(kl_divergence(*pair), logits, retain_graph=True)[0][0]
        for pair in pairs
    )
    got = list(readouts(pictures.kl_gradient(p)).values())
    expected = [one.item(), other.item(), one.item()]
    assert got == pytest.approx(expected, abs=1e-9)


@quick
@given(st.integers(3, 20))
def test_dpo_is_lowest_at_the_tilted_optimum(tenths):
    beta = tenths / 10
    best = tilted_optimum([0.5, 0.5], [1.0, 0.0], beta)[0]
    losses = [readouts(pictures.dpo(beta, p))["loss"] for p in best + [-1e-3, 0, 1e-3]]
    assert losses[1] < min(losses[0], losses[2])
    assert readouts(pictures.dpo(beta, best))["implicit gap"] == pytest.approx(1)


def test_compared_says_when_a_number_is_not_reproduced():
    logged = {"kl": [0.0, 0.1], "reward": [0.5, 0.6]}
    off = {"kl": [0.0, 0.1], "reward": [0.5, 0.61]}
    assert "below 1e-5" in pictures.compared(logged, logged).says
    assert "above 1e-5" in pictures.compared(logged, off).says


def test_side_by_side_shows_each_run():
    runs = {
        "a": {"reward": (0.1, 0.5), "kl": 0.2},
        "b": {"reward": (0.2, 0.6), "kl": 1},
    }
    reward, kl = pictures.side_by_side(runs).panels
    before, after = (bars.y for bars in reward.items)
    assert (before.tolist(), after.tolist()) == ([0.1, 0.2], [0.5, 0.6])
    assert kl.items[0].y.tolist() == [0.2, 1]
    assert list(reward.xticks.values()) == ["a", "b"]
