"""What a run proves about itself; each check is a number and its limit."""

from dataclasses import asdict, dataclass

import torch

from ..inputs import refuse
from ..kl import regularized_objective
from .evaluation import chain_rule, quietly
from .loop import sample, sampled_weights
from .task import ANSWERS, DIGITS, strict_reward


@dataclass(frozen=True)
class Check:
    """What should hold, how far off it is, and how far off it may be."""

    says: str
    value: float
    limit: float

    @property
    def ok(self):
        return bool(self.value <= self.limit)

    def __str__(self):
        return f"{self.says}, within {self.limit:g}" if self.limit else self.says

    def plain(self):
        return {**asdict(self), "ok": self.ok}


def first_ratio(policy, prompts, rows, uniforms):
    """max |p/o - 1| of the first batch: scored when sampled, and once more.

    Refused unless 0: dropout, or sampler and scorer at odds, shows here.
    """
    with torch.no_grad():
        old, new = policy.log_probs(prompts), policy.log_probs(prompts)
        answers = sample(old, rows, uniforms)
        ratio = (new[rows].gather(1, answers) - old[rows].gather(1, answers)).exp()
    off = (ratio - 1).abs().max().item()
    if off != 0:
        refuse(
            "p/o of the first batch", f"off 1 by up to {off:.3g}",
            "exactly 1 (is dropout on? then it scores differently each time)",
        )  # fmt: skip
    return off


def estimator_gap(policy, reference, prompts, answers, beta):
    """(largest difference, largest entry) of two gradients of the objective.

    One is the sampled estimator's expectation, over all 100 x 100 pairs of
    answers to each prompt, as the training loop computes it. The other is
    autograd's, through rlnb.kl's objective.
    """
    reward = strict_reward(answers, next(policy.parameters()).dtype)
    reward = reward.to(prompts.device)
    with torch.no_grad():
        logp, logq = quietly(policy, prompts), quietly(reference, prompts)
        weights = torch.stack(
            [
                expected_weights(*(x[n : n + 1] for x in (logp, logq, reward)), beta)
                for n in range(len(prompts))
            ]
        )
    tens, units = policy(prompts)
    upward = weights.unflatten(1, (DIGITS, DIGITS)) / len(prompts)
    parameters = list(policy.parameters())
    sampled = torch.autograd.grad(
        [tens, units], parameters, [upward.sum(-1), upward], retain_graph=True
    )
    p, q = (tens[:, :, None] + units).flatten(1).exp(), logq.exp()
    objective = regularized_objective(p, q, reward, beta).mean()
    direct = torch.autograd.grad(objective, parameters)
    gaps = [(a - b).abs().max() for a, b in zip(sampled, direct, strict=True)]
    return max(gaps).item(), max(x.abs().max() for x in direct).item()


def expected_weights(logp, logq, reward, beta):
    """E[sampled_weights] for one prompt and K = 2: (1, 100) each -> (100,)."""
    p = logp.exp()[0]
    middle = p.cumsum(0) - p / 2  # for each answer, a number that gives it
    rows = torch.zeros(ANSWERS, 1, dtype=torch.long, device=logp.device)
    known = [x.expand(ANSWERS, 1, ANSWERS) for x in (logp, logq, reward)]
    expected = torch.zeros_like(p)
    for first in range(ANSWERS):  # with each second one
        pairs = torch.stack([middle[first].expand(ANSWERS), middle], 1)
        weights, _, _ = sampled_weights(*known, beta, rows, pairs[:, None], total=2)
        expected += p[first] * (p @ weights[:, 0])
    return expected


def exact_checks(policy, reference, exact, task, trained, beta):
    """The checks that need no history: a list of Check.

    exact: the Evaluation of all prompts.
    """
    rows = torch.cat([trained[:2], task.held_out[:2]])
    off = (exact.kl - chain_rule(policy, reference, task.prompts)).abs().max()
    mass = (exact.mass - 1).abs().max()
    gap, size = estimator_gap(
        policy, reference, task.prompts[rows], task.answers[rows], beta
    )
    double = exact.kl.dtype == torch.float64
    return [
        Check("100 probabilities sum to 1", mass.item(), 1e-12 if double else 1e-4),
        Check(
            "KL enumerated = KL by the chain rule",
            off.item(),
            1e-10 if double else 1e-3,
        ),
        Check(
            "E[sampled gradient] = enumerated gradient",
            gap,
            (1e-10 if double else 1e-4) * max(1, size),
        ),
    ]
