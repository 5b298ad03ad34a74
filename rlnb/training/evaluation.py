"""Exact evaluation: all 100 trajectories of every prompt, no sampling."""

from dataclasses import dataclass

import torch

from ..inputs import refuse
from ..kl import kl_divergence
from .task import ANSWERS, NUMBERS

CHUNK = 250
MEASURES = "reward", "kl", "entropy"


@dataclass(frozen=True)
class Evaluation:
    """Exact figures of each prompt, (N,) each.

    reward: the probability of the right answer. kl: KL(p||q) of the
    trajectories, nats. entropy: H(p), nats. mass: the probabilities' sum.
    """

    reward: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    mass: torch.Tensor

    def means(self, index=slice(None)):
        """Means over the prompts of `index`: reward, kl and entropy, floats."""
        return {name: getattr(self, name)[index].mean().item() for name in MEASURES}


@torch.no_grad()
def evaluate(policy, reference, prompts, answers):
    """Exact reward, KL(p||q) and entropy of every prompt: an Evaluation.

    prompts (N, 2), answers (N,), integers. Nothing is sampled and neither
    network is changed; both are asked in eval mode.
    """
    if prompts.ndim != 2 or prompts.shape[1] != 2 or not len(prompts):
        refuse("prompts", f"of shape {tuple(prompts.shape)}", "(N, 2), N at least 1")
    if not 0 <= prompts.min() <= prompts.max() < NUMBERS:
        seen = f"from {prompts.min()} to {prompts.max()}"
        refuse("prompts", seen, f"numbers from 0 to {NUMBERS - 1}")
    if answers.shape != prompts.shape[:1]:
        seen, allowed = f"of shape {tuple(answers.shape)}", f"({len(prompts)},)"
        refuse("answers", seen, f"{allowed}, one for each prompt")
    if not 0 <= answers.min() <= answers.max() < ANSWERS:
        seen = f"from {answers.min()} to {answers.max()}"
        refuse("answers", seen, "integers from 0 to 99")
    logp, logq = (quietly(module, prompts) for module in (policy, reference))
    return enumerated(logp, logq, answers)


def enumerated(logp, logq, answers):
    """An Evaluation from log-probabilities (..., N, 100) and answers (N,)."""
    p = logp.exp()
    right = answers.expand(logp.shape[:-1])[..., None]
    return Evaluation(
        reward=p.gather(-1, right)[..., 0],
        kl=(p * (logp - logq)).sum(-1),
        entropy=-(p * logp).sum(-1),
        mass=p.sum(-1),
    )


@torch.no_grad()
def chain_rule(policy, reference, prompts):
    """KL(p||q) by the other route: the first step, then the second under it.

    (N, 2) -> (N,), nats. Uses rlnb.kl, so it also checks that each step is a
    distribution.
    """
    (p_tens, p_units), (q_tens, q_units) = (
        [x.exp() for x in module(prompts)] for module in (policy, reference)
    )
    later = kl_divergence(p_units, q_units)
    return kl_divergence(p_tens, q_tens) + (p_tens * later).sum(-1)


@torch.no_grad()
def quietly(module, prompts):
    """Log-probabilities (N, 100) in eval mode, the module's mode put back.

    A few hundred prompts at a time, which keeps within the processor's cache.
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        return torch.cat([module.log_probs(part) for part in prompts.split(CHUNK)])
    finally:
        for part, training in modes:
            part.training = training
