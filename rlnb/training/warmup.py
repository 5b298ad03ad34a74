"""The supervised phase that comes before: its end is the reference."""

import numpy as np
import torch

from .policy import Policy
from .task import DIGITS, addition

BATCH, LEARNING_RATE, GRID = 256, 3e-3, 2.0**20
STREAM = 2


def warm_up(config):
    """A policy after config.warmup steps of AdamW on right answers.

    Computed in float64 on the CPU, whatever the config says. After each step
    the weights are rounded to a grid of 2^-20, which wipes out the last digits
    in which CPUs and thread counts differ: every run of one start_seed begins
    with the same weights, to the bit.
    """
    task = addition(config.start_seed)
    with torch.random.fork_rng(devices=[]):
        policy = Policy().to(torch.float64)
        torch.manual_seed(config.start_seed)
        # drawn in float64: in float32 the CPUs' digits differ from 1e-7 on
        policy.apply(lambda m: getattr(m, "reset_parameters", int)())
    _round(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), LEARNING_RATE, fused=True)
    for step in range(config.warmup):
        rng = np.random.default_rng((STREAM, config.start_seed, step))
        index = task.train[torch.from_numpy(rng.integers(len(task.train), size=BATCH))]
        loss = -log_likelihood(policy, task.prompts[index], task.answers[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _round(policy)
    return policy


@torch.no_grad()
def _round(policy):
    for p in policy.parameters():
        p.copy_((p * GRID).round_() / GRID)


def log_likelihood(policy, prompts, answers):
    """Mean log-probability of given answers, nats."""
    h, tens, units = policy.read(prompts), answers // DIGITS, answers % DIGITS
    first = policy.log_tens(h).gather(1, tens[:, None])
    return (first + policy.log_units(h, tens).gather(1, units[:, None])).mean()
