"""KL divergence to a reference policy, and what it does to a reward.

p is the policy that is trained, q the reference policy. All logarithms are
natural: log-ratios and divergences are in nats, rewards in reward units, and
beta in reward units per nat. NumPy arrays and torch tensors alike.
"""

from .inputs import (
    arrays,
    number,
    refuse,
    refuse_infinite,
    refuse_log_probs,
    refuse_non_distribution,
    refuse_shapes,
    refuse_where,
)


def log_ratio(logp, logq):
    """log p - log q of the outcomes that were sampled, in nats.

    logp, logq: log-probabilities of the same outcomes, shapes that broadcast.
    One sample may well be negative; only its mean under p is a KL divergence.
    logq = -inf gives +inf: the reference cannot produce the outcome.
    Refused: both -inf, values above 0 (probabilities, perhaps), NaN.
    """
    xp, logp, logq = arrays(logp=logp, logq=logq)
    refuse_shapes(logp=logp, logq=logq)
    refuse_log_probs(xp, logp, logq)
    return logp - logq


def kl_divergence(p, q, axis=-1):
    """KL(p||q) = sum p (log p - log q) along `axis`, in nats.

    p, q: probabilities that sum to 1 along `axis`; other axes broadcast.
    0 log 0 is 0, with a gradient of 0. Where p > 0 and q = 0 the result is
    inf: no small constant is added, since it would set the answer.
    """
    xp, p, q = arrays(p=p, q=q)
    refuse_non_distribution(xp, "p", p, axis)
    refuse_non_distribution(xp, "q", q, axis)
    refuse_shapes(p=p, q=q)
    _refuse_other_outcomes("q", q, p, axis)
    if axis >= 0 and p.ndim != q.ndim:
        refuse("axis", axis, "-1, -2, ... where p and q differ in their axes")
    # log only where it is finite, so that neither value nor gradient is NaN
    live, missing = p > 0, (p > 0) & (q == 0)
    log_p = xp.log(xp.where(live, p, 1.0))
    log_q = xp.log(xp.where(q > 0, q, 1.0))
    terms = xp.where(live, p * (log_p - log_q), 0.0)
    return xp.sum(xp.where(missing, xp.inf, terms), axis=axis)


def entropy(p, axis=-1):
    """H(p) = -sum p log p along `axis`, in nats; 0 log 0 is 0."""
    xp, p = arrays(p=p)
    refuse_non_distribution(xp, "p", p, axis)
    log_p = xp.log(xp.where(p > 0, p, 1.0))
    return -xp.sum(xp.where(p > 0, p * log_p, 0.0), axis=axis)


def shaped_reward(reward, log_ratio, beta):
    """reward - beta * log_ratio: what one sampled outcome is worth.

    reward: finite, in reward units. log_ratio: log p - log q, in nats; shapes
    broadcast. beta >= 0, in reward units per nat. At beta = 0 the second term
    is skipped, so an infinite log-ratio leaves the reward as it is.
    """
    beta = _beta(beta)
    xp, reward, log_ratio = arrays(reward=reward, log_ratio=log_ratio)
    refuse_infinite(xp, "reward", reward)
    refuse_where(xp, xp.isnan(log_ratio), "log_ratio", log_ratio, "numbers, or +-inf")
    refuse_shapes(reward=reward, log_ratio=log_ratio)
    penalty = beta * log_ratio if beta else xp.zeros_like(log_ratio)
    return reward - penalty


def regularized_objective(p, q, reward, beta):
    """J = sum p reward - beta KL(p||q) over the last axis, in reward units.

    p, q: probabilities (..., A). reward: (..., A). At beta = 0 no reference is
    asked: q is not looked at and may be None.
    """
    beta = _beta(beta)
    xp, p, q, reward = arrays(p=p, q=q if beta else p, reward=reward)
    refuse_non_distribution(xp, "p", p, -1)
    refuse_infinite(xp, "reward", reward)
    refuse_shapes(p=p, reward=reward)
    _refuse_other_outcomes("reward", reward, p)
    expected_reward = xp.sum(p * reward, axis=-1)
    if beta == 0:
        return expected_reward
    return expected_reward - beta * kl_divergence(p, q)


def tilted_optimum(q, reward, beta):
    """The p that maximises `regularized_objective`: q exp(reward/beta) / Z.

    q: probabilities (..., A). reward: (..., A), in reward units. Returns
    probabilities (..., A). At beta = 0 the limit is taken: q restricted to
    the best outcomes it can produce. An outcome with q = 0 stays at 0.
    Source: Donsker and Varadhan's variational formula; for RLHF, Korbak et
    al. 2022, arXiv 2205.11275.
    """
    beta = _beta(beta)
    xp, q, reward = arrays(q=q, reward=reward)
    refuse_non_distribution(xp, "q", q, -1)
    refuse_infinite(xp, "reward", reward)
    refuse_shapes(q=q, reward=reward)
    _refuse_other_outcomes("reward", reward, q)
    reachable = xp.where(q > 0, reward, -xp.inf)
    gap = reward - xp.max(reachable, axis=-1, keepdims=True)
    # at most 0 where q > 0, and exp(-1e4) is 0: nothing overflows
    if beta:
        tilt = xp.exp(xp.clip(gap, -1e4 * beta, 0.0) / beta)
    else:
        tilt = xp.astype(gap == 0, q.dtype)
    weight = q * tilt
    return weight / xp.sum(weight, axis=-1, keepdims=True)


def _beta(beta):
    """beta as a float: 0, or so large that it is not 0 in float32 either."""
    beta = number("beta", beta, "a number >= 0, below 1e30", lambda b: b >= 0)
    return max(beta, 1e-30) if beta else 0.0


def _refuse_other_outcomes(name, x, p, axis=-1):
    if x.ndim and x.shape[axis] != p.shape[axis]:
        allowed = f"{p.shape[axis]}, as the probabilities beside it"
        refuse(name, f"over {x.shape[axis]} outcomes", allowed)
