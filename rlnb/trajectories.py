"""KL between policies over whole trajectories of T steps, V choices a step.

A tree is given by its conditionals: step t has an axis for each earlier choice
and one for its own, so (V,), (V, V), (V, V, V), ... What stands under a prefix
that is never reached is not read. NumPy arrays and torch tensors alike;
log-probabilities and divergences in nats.
"""

from .inputs import (
    arrays,
    largest_exponent,
    refuse,
    refuse_infinite,
    refuse_non_distribution,
    refuse_shapes,
    refuse_where,
)
from .kl import kl_divergence, log_ratio


def path_log_probs(first, *later):
    """Log-probabilities of all paths, (V^T,): the last choice runs fastest.

    first, later: conditional log-probabilities, (V,), (V, V), ... For two
    steps path_log_probs(first, second) is row-major over (first, second).
    """
    names = ["first", *(f"later[{t}]" for t in range(len(later)))]
    xp, *steps = arrays(**dict(zip(names, (first, *later), strict=True)))
    total = _scalar(xp, steps[0], 0.0)
    for name, step in zip(names, steps, strict=True):
        reached = total > -xp.inf
        # exp(1) is refused too, and does not overflow
        _conditional(xp, name, xp.exp(xp.clip(step, None, 1.0)), reached)
        step = xp.where(reached[..., None], step, -xp.inf)
        total = xp.where(reached, total, 0.0)[..., None] + step
    return xp.reshape(total, (-1,))


def tree_kl(p_steps, q_steps):
    """KL(p||q) over all paths by the chain rule: a scalar.

    p_steps, q_steps: sequences of conditional probabilities, (V,), (V, V),
    ... of any depth. Each prefix's KL(p||q) of the next step is weighted with
    p's probability of the prefix, never with q's.
    Source: Cover and Thomas, Elements of Information Theory, theorem 2.5.3.
    """
    if not len(p_steps):
        refuse("p_steps", "empty", "at least one step")
    if len(p_steps) != len(q_steps):
        refuse("q_steps", f"{len(q_steps)} steps", f"{len(p_steps)}, as p_steps")
    names = [f"{which}_steps[{t}]" for which in "pq" for t in range(len(p_steps))]
    xp, *steps = arrays(**dict(zip(names, (*p_steps, *q_steps), strict=True)))
    half = len(p_steps)
    weight, total = _scalar(xp, steps[0], 1.0), _scalar(xp, steps[0], 0.0)
    q_reached = weight > 0  # no product: it would underflow, and q be ignored
    for t, (p, q) in enumerate(zip(steps[:half], steps[half:], strict=True)):
        reached = weight > 0
        p = _conditional(xp, names[t], p, reached)
        q = _conditional(xp, names[half + t], q, q_reached)
        if p.shape != q.shape:
            seen, allowed = f"of shape {tuple(q.shape)}", f"{tuple(p.shape)}, as p's"
            refuse(names[half + t], seen, allowed)
        step = xp.where(reached, kl_divergence(p, q), 0.0)
        # where p goes and q cannot, the sum is inf already
        total = total + xp.sum(xp.where(reached, weight, 0.0) * step)
        weight, q_reached = weight[..., None] * p, q_reached[..., None] & (q > 0)
    return total


def chain_rule_kl(p_first, p_second, q_first, q_second):
    """`tree_kl` of two steps: KL of the first + E_p[KL of the second].

    p_first, q_first: probabilities (A,). p_second, q_second: (A, A), a row
    for each first choice. Returns a scalar, in nats.
    """
    return tree_kl([p_first, p_second], [q_first, q_second])


def rao_blackwell_kl(p_steps, q_steps):
    """The sum over a trajectory's steps of the exact KL(p||q) of each step.

    p_steps, q_steps: probabilities at the visited prefixes, (..., T, V).
    Returns (...). Its mean over trajectories of p is KL(p||q) of the paths.
    Source: Amini et al. 2025, arXiv 2504.10637.
    """
    xp, p, q = arrays(p_steps=p_steps, q_steps=q_steps)
    if p.ndim < 2:
        refuse("p_steps", f"of shape {tuple(p.shape)}", "(..., T, V)")
    return xp.sum(kl_divergence(p, q), axis=-1)


def importance_weights(logp, log_old):
    """w = p/o of samples from o, given their log-probabilities; any shape.

    E_o[w f] = E_p[f], if o > 0 wherever p > 0. Refused: log_old = -inf, since
    o cannot have given that sample, and weights beyond the dtype's range.
    """
    xp, logp, log_old = arrays(logp=logp, log_old=log_old)
    refuse_shapes(logp=logp, log_old=log_old)
    refuse_where(xp, log_old == -xp.inf, "log_old", log_old, "finite: it was sampled")
    refuse_where(xp, ~(log_old <= 1e-5), "log_old", log_old, "at most 0")
    away = log_ratio(logp, log_old)
    return _exp(xp, "logp - log_old", away)


def path_ratio(token_ratios):
    """The ratio of a whole path: the product of its tokens' ratios.

    token_ratios: p/o of each token, > 0, (..., T). Returns (...).
    """
    xp, ratios = arrays(token_ratios=token_ratios)
    refuse_infinite(xp, "token_ratios", ratios)
    refuse_where(xp, ratios <= 0, "token_ratios", ratios, "numbers > 0")
    if not ratios.ndim:
        refuse("token_ratios", "one number", "an axis of tokens")
    total = xp.sum(xp.log(ratios), axis=-1)
    return _exp(xp, "the log of the product of token_ratios", total)


def _scalar(xp, like, value):
    return xp.full_like(xp.reshape(like, (-1,))[0], value)


def _conditional(xp, name, p, reached):
    """p with a row that sums to 1 under each prefix, and checked where reached."""
    if p.ndim != reached.ndim + 1 or p.shape[:-1] != reached.shape:
        seen = f"of shape {tuple(p.shape)}"
        refuse(name, seen, f"{tuple(reached.shape)} + (V,), a row for each prefix")
    p = xp.where(reached[..., None], p, 1 / p.shape[-1])
    refuse_non_distribution(xp, name, p, -1)
    return p


def _exp(xp, name, x):
    largest = largest_exponent(xp, x)
    refuse_where(xp, x > largest, name, x, f"at most {largest} in this dtype")
    return xp.exp(x)
