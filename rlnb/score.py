"""The gradient of an objective whose reward depends on the policy itself.

J = sum p (R - beta l), with l = log p - log q: the parameters stand in p and
in l. Two routes lead to the gradient: differentiate J directly, or weight the
score (the gradient of log p) by a return that is held fixed. Log-probabilities
in nats, returns in reward units. Gradients need torch.
Source: Williams 1992, https://doi.org/10.1007/BF00992696 (score function).
"""

from .inputs import (
    arrays,
    needs_torch,
    refuse,
    refuse_infinite,
    refuse_logits,
    refuse_shapes,
    refuse_where,
)
from .kl import log_ratio, regularized_objective, shaped_reward


def score_surrogate(logp, returns):
    """returns * logp, element by element, with the returns held fixed.

    logp: log-probabilities of sampled outcomes, a torch tensor with a
    gradient; returns: one finite return each; shapes broadcast. To be
    maximised: the mean of its gradients estimates the gradient of J. Its
    value means nothing.
    """
    needs_torch("score_surrogate")
    xp, logp, returns = arrays(logp=logp, returns=returns)
    if not hasattr(logp, "requires_grad"):
        refuse("logp", "a NumPy array", "a torch tensor, for its gradient")
    bad = ~(logp <= 1e-5) | (logp == -xp.inf)
    refuse_where(xp, bad, "logp", logp, "finite log-probabilities, at most 0")
    refuse_infinite(xp, "returns", returns)
    refuse_shapes(logp=logp, returns=returns)
    return returns.detach() * logp


def direct_objective(p, q, reward, beta):
    """J = sum p (reward - beta (log p - log q)) over the last axis.

    The same number as `rlnb.kl.regularized_objective`, which see for shapes
    and refusals. With torch tensors it can be differentiated as it stands,
    for the sum over all outcomes is complete.
    """
    return regularized_objective(p, q, reward, beta)


def gradient_routes(logits, q, reward, beta):
    """The gradient of J with respect to logits, by both routes.

    logits: torch tensor (..., A); p is its softmax, and -inf a masked action.
    q, reward: (..., A). q is above 0 wherever p is; not looked at if beta = 0.
    Returns (direct, score, largest difference): two tensors (..., A) and a
    float. direct: autograd through J. score: sum p_fixed G_fixed grad log p
    with G = reward - beta l. Both are summed over all outcomes.
    """
    torch = needs_torch("gradient_routes")
    if q is None and beta == 0:
        q = logits  # not looked at: no reference is asked
    xp, logits, q, reward = arrays(logits=logits, q=q, reward=reward)
    if not torch.is_tensor(logits) or not logits.ndim:
        refuse("logits", "no torch tensor of an axis", "a torch tensor (..., A)")
    refuse_logits(xp, logits)
    logits = logits.detach().requires_grad_()
    p = logits.softmax(-1)
    objective = direct_objective(p, q, reward, beta).sum()
    (direct,) = torch.autograd.grad(objective, logits)

    live = p > 0  # a masked action has no log-probability to follow
    if beta:
        missing = live & (q == 0)
        refuse_where(xp, missing, "q", q, "above 0 wherever p is")
    logp = torch.where(live, logits.log_softmax(-1), 0.0)
    logq = torch.where(live, q, 1.0).log() if beta else torch.zeros_like(logp)
    returns = shaped_reward(reward, log_ratio(logp, logq), beta)
    weighted = p.detach() * score_surrogate(logp, returns)
    (score,) = torch.autograd.grad(weighted.sum(), logits)
    return direct, score, float((direct - score).abs().max())
