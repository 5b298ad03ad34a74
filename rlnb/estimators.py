"""Three estimators of KL(p||q) from samples of p, and their gradients.

l = log p - log q of a sample, in nats. k1 = l, k2 = l^2/2 and
k3 = exp(-l) - 1 + l. What each estimates is one question, what its gradient
points at another: `expected_gradient` answers the second.
Source: Schulman 2020, http://joschu.net/blog/kl-approx.html (values).
"""

from .inputs import (
    arrays,
    largest_exponent,
    needs_torch,
    refuse,
    refuse_infinite,
    refuse_logits,
    refuse_non_distribution,
    refuse_where,
)
from .kl import log_ratio as log_ratio_of


def k1(log_ratio):
    """l itself. Unbiased; a single one may be negative. Any shape, nats."""
    _, log_ratio = _checked(log_ratio)
    return log_ratio * 1  # not the caller's own array


def k2(log_ratio):
    """l^2 / 2. Never negative; biased. Any shape, nats.

    Refused where the square leaves the range of the dtype.
    """
    xp, log_ratio = _checked(log_ratio)
    largest = 1e19 if log_ratio.dtype == xp.float32 else 1e154
    allowed = f"at most {largest:g} in size here"
    refuse_where(xp, abs(log_ratio) > largest, "log_ratio", log_ratio, allowed)
    return log_ratio**2 / 2


def k3(log_ratio):
    """exp(-l) - 1 + l. Never negative; unbiased where q > 0 implies p > 0.

    Any shape, nats. Near l = 0, where the three terms cancel, it is summed as
    a series, so that float32 keeps its digits. Refused where exp(-l) leaves
    the range of the dtype: no bound is put on the value in silence.
    """
    xp, log_ratio = _checked(log_ratio)
    x, largest = -log_ratio, largest_exponent(xp, log_ratio)
    refuse_where(xp, x > largest, "log_ratio", log_ratio, f"at least -{largest} here")
    near = abs(x) < 0.5
    small, large = xp.where(near, x, 0.0), xp.where(near, 1.0, x)
    series = xp.ones_like(small)
    for n in range(18, 2, -1):  # exp(x) - 1 - x = x^2/2 (1 + x/3 (1 + x/4 ...
        series = 1 + small / n * series
    return xp.where(near, small**2 / 2 * series, xp.expm1(large) - large)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
PLACEMENTS = ("loss", "reward", "weighted_loss")


def estimate(name, log_ratio):
    """The estimator called `name`, "k1", "k2" or "k3", of each log-ratio."""
    if not isinstance(name, str) or name not in ESTIMATORS:
        refuse("name", repr(name), ", ".join(ESTIMATORS))
    return ESTIMATORS[name](log_ratio)


def expected_gradient(name, logits, q, placement):
    """The mean gradient that a trainer gets from an estimator, exactly.

    name: "k1", "k2", "k3". logits: torch tensor (A,); p is its softmax, and
    -inf a masked action. q: probabilities (A,), above 0 wherever p is.
    Returns (A,): what gradient *descent* on the penalty uses, to be compared
    with the gradient of KL(p||q). placement:

    "loss": mean over samples of grad k, as if sampling were fixed.
    "reward": mean of k_fixed grad log p, k being subtracted from a reward.
    "weighted_loss": mean of grad (w k) with w = p / p_fixed, equal to 1.
    """
    torch = needs_torch("expected_gradient")
    if not isinstance(placement, str) or placement not in PLACEMENTS:
        refuse("placement", repr(placement), ", ".join(PLACEMENTS))
    xp, logits, q = arrays(logits=logits, q=q)
    if not torch.is_tensor(logits) or logits.ndim != 1:
        refuse("logits", "no torch tensor of one axis", "a torch tensor (A,)")
    refuse_logits(xp, logits)
    if q.shape != logits.shape:
        seen = f"of shape {tuple(q.shape)}"
        refuse("q", seen, f"{tuple(logits.shape)}, as logits")
    logits = logits.detach().requires_grad_()
    fixed, live = logits.detach().softmax(-1), logits > -torch.inf
    refuse_non_distribution(xp, "q", q, -1)
    refuse_where(xp, live & (q == 0), "q", q, "above 0 wherever p is")
    # a masked action is never sampled: l and its gradient are 0 there
    logp = torch.where(live, logits.log_softmax(-1), 0.0)
    k = estimate(name, log_ratio_of(logp, torch.where(live, q, 1.0).log()))
    terms = {
        "loss": fixed * k,
        "reward": fixed * k.detach() * logp,
        "weighted_loss": logp.exp() * k,
    }
    return torch.autograd.grad(terms[placement].sum(), logits)[0]


def _checked(log_ratio):
    xp, log_ratio = arrays(log_ratio=log_ratio)
    refuse_infinite(xp, "log_ratio", log_ratio)
    return xp, log_ratio
