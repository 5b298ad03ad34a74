"""Two-digit addition: small enough that every answer can be counted.

A prompt is two numbers from 0 to 49. An answer is a trajectory of two steps,
tens and units, ten actions each: 100 answers. The reward is strict: 1 if both
digits are right, else 0.
"""

from dataclasses import dataclass

import numpy as np
import torch

NUMBERS, DIGITS, ANSWERS = 50, 10, 100
GROUPS = "trained", "other train", "held out"
STREAM = 1


@dataclass(frozen=True)
class Task:
    """prompts (2500, 2), answers (2500,), and a split into two halves.

    train, held_out: indices (1250,) into prompts, in random order.
    """

    prompts: torch.Tensor
    answers: torch.Tensor
    train: torch.Tensor
    held_out: torch.Tensor

    def groups(self, count):
        """Indices by name: `count` prompts to train on, the rest of that half, the
        half held out. A group without prompts is left out."""
        parts = self.train[:count], self.train[count:], self.held_out
        groups = zip(GROUPS, parts, strict=True)
        return {name: index for name, index in groups if len(index)}


def addition(seed=0):
    """The task; the seed decides which half is held out."""
    numbers = torch.arange(NUMBERS)
    prompts = torch.cartesian_prod(numbers, numbers)
    rng = np.random.default_rng((STREAM, seed))
    order = torch.from_numpy(rng.permutation(len(prompts)))
    half = len(prompts) // 2
    return Task(prompts, prompts.sum(1), order[:half], order[half:])


def strict_reward(answers, dtype=torch.float64):
    """The reward of all 100 trajectories: (N,) right answers -> (N, 100)."""
    return torch.nn.functional.one_hot(answers, ANSWERS).to(dtype)
