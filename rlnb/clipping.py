"""PPO's clipped surrogate, to be maximised, and when to stop early.

ratio is w = p(a)/o(a): the current policy over the old one that sampled the
data, never over the reference. advantage is A. eps is the clip range. Shapes
broadcast; values are in reward units. NumPy arrays and torch tensors alike.
Source: Schulman et al. 2017, arXiv 1707.06347, equation 7.
"""

from .inputs import arrays, number, refuse_infinite, refuse_shapes, refuse_where


def clipped_surrogate(ratio, advantage, eps):
    """min(w A, clip(w, 1-eps, 1+eps) A), element by element.

    The minimum is taken of the two products, for either sign of A.
    """
    return _surrogate(*_checked(ratio, advantage, eps))


def _surrogate(xp, ratio, advantage, eps):
    clipped = xp.clip(ratio, 1 - eps, 1 + eps)
    return xp.minimum(ratio * advantage, clipped * advantage)


def clip_is_active(ratio, advantage, eps):
    """True where clipping holds the surrogate flat: slope 0.

    That is A > 0 with w > 1+eps, or A < 0 with w < 1-eps. On the other side
    the same w is outside the range and is not clipped.
    """
    _, ratio, advantage, eps = _checked(ratio, advantage, eps)
    return _is_active(ratio, advantage, eps)


def clipped_slope(ratio, advantage, eps):
    """The derivative of `clipped_surrogate` by w: A, or 0 where it is flat.

    At a kink itself it is A, as torch's autograd has it.
    """
    xp, ratio, advantage, eps = _checked(ratio, advantage, eps)
    return xp.where(_is_active(ratio, advantage, eps), 0.0, advantage)


def _is_active(ratio, advantage, eps):
    above = (advantage > 0) & (ratio > 1 + eps)
    below = (advantage < 0) & (ratio < 1 - eps)
    return above | below


def clip_fraction(ratio, advantage, eps):
    """The share of samples whose slope is 0: one number from 0 to 1."""
    xp, ratio, advantage, eps = _checked(ratio, advantage, eps)
    return xp.mean(xp.astype(_is_active(ratio, advantage, eps), ratio.dtype))


def dual_clip(ratio, advantage, eps, c):
    """`clipped_surrogate`, but where A < 0 never below c A, with c > 1.

    Source: Ye et al. 2020, arXiv 1912.09729, equation 5.
    """
    c = number("c", c, "a number > 1, below 1e30", lambda c: c > 1)
    xp, ratio, advantage, eps = _checked(ratio, advantage, eps)
    surrogate = _surrogate(xp, ratio, advantage, eps)
    floor = xp.maximum(surrogate, c * advantage)
    return xp.where(advantage < 0, floor, surrogate)


def should_stop(log_ratio, limit):
    """True once the policy has moved further than `limit` from the old one.

    log_ratio: log new - log old of samples from the old policy, nats, any
    shape. limit > 0, nats. Estimates KL(old||new) by the mean of
    exp(l) - 1 - l, whose every term is >= 0: the plain mean of -l may be
    negative when the policy has moved far. Ask after each minibatch.
    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html
    """
    limit = number("limit", limit, "a number > 0, below 1e30", lambda x: x > 0)
    xp, log_ratio = arrays(log_ratio=log_ratio)
    bad = ~(log_ratio < xp.inf)
    refuse_where(xp, bad, "log_ratio", log_ratio, "finite, or -inf")
    # 50 nats is past any limit, and its exponential is finite in float32
    bounded = xp.minimum(log_ratio, xp.full_like(log_ratio, 50.0))
    return bool(xp.mean(xp.expm1(bounded) - bounded) > limit)


def _checked(ratio, advantage, eps):
    eps = number("eps", eps, "a number in (0, 1)", lambda e: 0 < e < 1)
    xp, ratio, advantage = arrays(ratio=ratio, advantage=advantage)
    refuse_infinite(xp, "ratio", ratio)
    refuse_infinite(xp, "advantage", advantage)
    refuse_where(xp, ratio <= 0, "ratio", ratio, "numbers > 0")
    refuse_shapes(ratio=ratio, advantage=advantage)
    return xp, ratio, advantage, eps
