"""PPO's clipped surrogate by branches, by autograd and by finite differences."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from libraries import LIBRARIES, each_library, plain, quick

from rlnb.clipping import (
    clip_fraction,
    clip_is_active,
    clipped_slope,
    clipped_surrogate,
    dual_clip,
    should_stop,
)

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan

ratios, advantages = st.floats(1e-3, 20), st.floats(-5, 5)
ranges = st.floats(0.01, 0.99)
log_ratios = st.lists(st.floats(-5, 5), min_size=1)


def by_branches(w, a, eps):
    """The surrogate's (value, slope), one branch after the other."""
    if a > 0 and w > 1 + eps:
        return (1 + eps) * a, 0.0
    if a < 0 and w < 1 - eps:
        return (1 - eps) * a, 0.0
    return w * a, a


def k3_mean(log_ratio):
    return math.fsum(math.expm1(x) - x for x in log_ratio) / len(log_ratio)


@pytest.mark.parametrize(
    "advantage, ratio, value, slope",
    [
        (2, 0.6, 1.2, 2),
        (2, 1.0, 2, 2),
        (2, 1.4, 2.4, 0),
        (-2, 0.6, -1.6, 0),
        (-2, 1.0, -2, -2),
        (-2, 1.4, -2.8, -2),
        (-2, 10, -20, -2),
        (2, 1e-30, 2e-30, 2),
        (1, 1, 1, 1),  # p = old = .4, whatever the reference
        (0, 1.4, 0, 0),
        (0, 0.6, 0, 0),
    ],
)
@each_library
def test_value_and_slope_at_known_points(lib, advantage, ratio, value, slope):
    arguments = lib(ratio), lib(advantage), 0.2
    lib.check(clipped_surrogate(*arguments), value)
    lib.check(clipped_slope(*arguments), slope)
    flat = slope == 0 and advantage != 0
    assert bool(clip_is_active(*arguments)) == flat
    lib.check(clip_fraction(*arguments), float(flat))


@quick
@given(ratios, advantages, ranges)
def test_the_surrogate_is_its_branches_and_never_above_the_unclipped(w, a, eps):
    value, slope = by_branches(w, a, eps)
    assert clipped_surrogate(w, a, eps) == pytest.approx(value, abs=1e-12)
    assert clipped_surrogate(w, a, eps) <= w * a
    assert clipped_slope(w, a, eps) == slope
    assert clip_is_active(w, a, eps) == (slope == 0 and a != 0)
    for lib in LIBRARIES:
        if min(abs(w - 1 - eps), abs(w - 1 + eps)) > 1e-5:
            lib.check(clipped_slope(lib(w), lib(a), eps), slope)
            lib.check(clipped_surrogate(lib(w), lib(a), eps), value)


@quick
@given(ratios, advantages, ranges)
def test_the_slope_is_autograds_and_that_of_finite_differences(w, a, eps):
    ratio = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    clipped_surrogate(ratio, a, eps).backward()
    slope = float(clipped_slope(w, a, eps))
    if w * a != np.clip(w, 1 - eps, 1 + eps) * a or 1 - eps <= w <= 1 + eps:
        assert ratio.grad.item() == pytest.approx(slope, abs=1e-12)
    h = 1e-6
    if min(abs(w - 1 - eps), abs(w - 1 + eps)) > 2 * h:
        ends = clipped_surrogate(np.array([w + h, w - h]), a, eps)
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("eps", [0.1, 0.2, 0.25, 0.3])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
@each_library
def test_at_a_kink_clipping_is_not_active_and_the_slope_is_autograds(
    lib, advantage, eps
):
    for kink in (1 - eps, 1 + eps):
        assert not clip_is_active(lib(kink), lib(advantage), eps)
        lib.check(clipped_slope(lib(kink), advantage, eps), advantage)
        if lib.module is torch:
            ratio = lib(kink).requires_grad_()
            clipped_surrogate(ratio, advantage, eps).backward()
            assert ratio.grad.item() == advantage


@each_library
def test_the_active_fraction_respects_the_sign_of_the_advantage(lib):
    got = clip_fraction(lib([0.6, 1.4, 0.6, 1.4]), lib([1, 1, -1, -1]), 0.2)
    lib.check(got, 0.5)


@each_library
def test_a_third_keeps_the_digits_of_its_dtype(lib):
    lib.check(clip_fraction(lib([1.4, 1.0, 1.0]), 1.0, 0.2), 1 / 3)


@each_library
def test_the_minimum_is_taken_sample_by_sample_before_the_mean(lib):
    got = clipped_surrogate(lib([1.4, 0.6]), lib([2, -2]), 0.2)
    lib.check(got, [2.4, -1.6])
    assert float(got.mean()) == pytest.approx(0.4, abs=1e-6)


@each_library
def test_shapes_broadcast(lib):
    ratio, advantage = lib([0.6, 1.0, 1.4]), lib([[2.0], [-2.0]])
    right = [[by_branches(w, a, 0.2) for w in (0.6, 1, 1.4)] for a in (2, -2)]
    values, slopes = np.moveaxis(np.array(right), -1, 0)
    lib.check(clipped_surrogate(ratio, advantage, 0.2), values)
    lib.check(clipped_slope(ratio, advantage, 0.2), slopes)
    lib.check(clip_fraction(ratio, advantage, 0.2), 2 / 6)
    lib.check(dual_clip(ratio, advantage, 0.2, 1.2), np.maximum(values, -2.4))


@pytest.mark.parametrize("bad", [0.0, -0.5, NAN, INF])
@each_library
def test_a_ratio_is_above_zero_and_finite(lib, bad):
    for function in (clipped_surrogate, clipped_slope, clip_is_active, clip_fraction):
        with pytest.raises(ValueError, match=r"ratio\[1\] is .*; allowed: .*numbers"):
            function(lib([1.0, bad]), lib([1.0, 1.0]), 0.2)
        with pytest.raises(ValueError, match="eps is 0; allowed: a number in"):
            function(lib([1.0]), lib([1.0]), 0)


# --- dual clip --------------------------------------------------------------------


@pytest.mark.parametrize(
    "advantage, ratio, right", [(2, 1, 2), (-2, 10, -6), (-2, 0.6, -1.6), (2, 10, 2.4)]
)
@each_library
def test_dual_clip_touches_only_negative_advantages(lib, advantage, ratio, right):
    lib.check(dual_clip(lib(ratio), lib(advantage), 0.2, 3), right)


@quick
@given(ratios, advantages, ranges, st.floats(1.01, 10))
def test_dual_clip_bounds_the_loss_of_a_negative_advantage(w, a, eps, c):
    plain_surrogate, dual = (clipped_surrogate(w, a, eps), dual_clip(w, a, eps, c))
    right = max(plain_surrogate, c * a) if a < 0 else plain_surrogate
    assert dual == right
    assert dual >= min(c * a, plain_surrogate)


def test_dual_clip_is_flat_past_c():
    ratio = torch.tensor([2.9, 3.1], requires_grad=True)
    dual_clip(ratio, -2.0, 0.2, 3).sum().backward()
    assert ratio.grad.tolist() == [-2, 0]


# --- early stop ---------------------------------------------------------------------


@each_library
def test_the_stop_sees_what_the_signed_mean_hides(lib):
    moved = [-0.2, -0.1, 0.1, 0.8]
    assert np.mean(moved) == pytest.approx(0.15)  # as KL estimate -.15
    assert should_stop(lib(moved), 0.015) is True
    assert should_stop(lib(moved), 0.11356) is True
    assert should_stop(lib(moved), 0.11358) is False


def test_a_look_after_each_minibatch_stops_before_the_third():
    rising = np.linspace(0, 1, 100_001)  # a log-ratio for every KL wanted
    kl = np.expm1(rising) - rising
    batches = [rising[np.searchsorted(kl, k)] for k in (0.005, 0.05, 0.004)]
    stops = [should_stop([moved], 0.015) for moved in batches]
    assert stops == [False, True, False]
    assert k3_mean(batches[1:2]) == pytest.approx(0.05, abs=1e-4)


@quick
@given(log_ratios, st.floats(1e-6, 3))
def test_the_stop_compares_the_mean_of_k3_with_the_limit(log_ratio, limit):
    estimate = k3_mean(log_ratio)
    for lib in LIBRARIES:
        if abs(estimate - limit) > 1e-5 * (1 + estimate):
            assert should_stop(lib(log_ratio), limit) is (estimate > limit)
            assert should_stop(lib([log_ratio] * 2), limit) is (estimate > limit)


@quick
@given(log_ratios, st.floats(1e-6, 3), st.floats(1e-6, 3))
def test_who_stops_at_a_limit_stops_at_every_smaller_one(log_ratio, one, other):
    low, high = sorted((one, other))
    assert should_stop(log_ratio, low) or not should_stop(log_ratio, high)


def test_exactly_at_the_limit_training_goes_on():
    assert not should_stop([0.5], np.expm1(0.5) - 0.5)
    assert should_stop([0.5], np.nextafter(np.expm1(0.5) - 0.5, 0))


@each_library
def test_small_moves_are_measured_without_cancellation(lib):
    assert should_stop(lib([1e-4, -1e-4]), 4.99e-9) is True
    assert should_stop(lib([1e-4, -1e-4]), 5.01e-9) is False


@each_library
def test_a_policy_that_has_not_moved_never_stops(lib):
    assert should_stop(lib([0.0, 0.0]), 1e-29) is False
    assert should_stop(lib(0.0), 1e-29) is False


@pytest.mark.parametrize("far", [100.0, -100.0, 1e4, -1e4, 1e30, -INF])
@each_library
def test_far_off_policies_stop_without_overflow(lib, far):
    assert should_stop(lib([far, 0.0]), 10) is True


@pytest.mark.parametrize("bad", [NAN, INF])
@each_library
def test_a_log_ratio_without_meaning_is_refused(lib, bad):
    with pytest.raises(ValueError, match=r"log_ratio\[1\] is (nan|inf); allowed: "):
        should_stop(lib([0.0, bad]), 0.015)


def test_a_tensor_with_a_gradient_is_as_good():
    assert should_stop(torch.tensor([1.0], requires_grad=True), 0.015) is True
    assert not plain(clip_is_active(torch.ones(2, requires_grad=True), 1.0, 0.2)).any()
