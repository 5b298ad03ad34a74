"""Lesson 08: a trainer's terms, beside the formulas of the lessons before."""

from functools import cache
from typing import Annotated

import numpy as np
import torch

from ..advantages import group_standardized, leave_one_out
from ..estimators import expected_gradient
from ..kl import log_ratio, tilted_optimum
from ..preferences import dpo_loss, implicit_reward
from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout
from ..show.picture import short

Q = np.array([0.5, 0.5])
GROUP = 8
TERMS = {  # what a trainer does with KL: (estimator, where it stands)
    "RLOO: k1 in reward": ("k1", "reward"),
    "GRPO: k3 in loss": ("k3", "loss"),
    "GRPO: k3 × ratio": ("k3", "weighted_loss"),
}


def advantages(right: Annotated[float, "right answers of 8"] = 3) -> Picture:
    """The advantages of one group of 8, as RLOO and as GRPO compute them."""
    right = int(right)
    returns = np.array([[1.0] * right + [0.0] * (GROUP - right)])
    x = np.arange(GROUP)
    ways = {"RLOO": leave_one_out(returns)[0], "GRPO": group_standardized(returns)[0]}
    pull = {name: float(np.abs(a).sum()) for name, a in ways.items()}
    says = (
        "All alike: no answer is better than another, both give 0."
        if right in (0, GROUP)
        else f"GRPO weights this group {short(pull['GRPO'] / pull['RLOO'])} times as "
        "much as RLOO does. It divides by the spread, which is smallest where nearly "
        "all answers are right, or nearly all wrong."
    )
    return Picture(
        "One group of 8 answers",
        (
            Panel(
                "Advantage of each answer",
                (
                    Bars("RLOO", x - 0.2, ways["RLOO"], "blue", 0.4),
                    Bars("GRPO", x + 0.2, ways["GRPO"], "orange", 0.4),
                ),
                (-0.6, 7.6), (-3, 3), "answer", "",
                xticks={float(k): "1" if k < right else "0" for k in x},
            ),
        ),
        says,
        [Readout(f"Σ|A|, {name}", value, digits=2) for name, value in pull.items()],
    )  # fmt: skip


@cache
def kl_gradients(p):
    """Expected gradient of each trainer's KL term by the logit of A, at p(A) = p."""
    logits = torch.log(torch.tensor([p, 1 - p], dtype=torch.float64))
    return [
        float(expected_gradient(name, logits, Q.tolist(), placement)[0])
        for name, placement in TERMS.values()
    ]


def kl_gradient(p: Annotated[float, "p(A)"] = 0.8) -> Picture:
    """The gradient that each trainer's KL term has on average, over p(A)."""
    grid = np.round(np.linspace(0.02, 0.98, 49), 2)
    lines = np.array([kl_gradients(float(x)) for x in grid]).T
    now = kl_gradients(round(p, 2))
    looks = ("blue", "solid"), ("orange", "dash"), ("green", "dot")
    items = [
        Line(name, grid, y, *look)
        for name, y, look in zip(TERMS, lines, looks, strict=True)
    ]
    return Picture(
        "Which gradient a trainer's KL term has",
        (
            Panel(
                "One token, two answers, q = [0.5, 0.5]",
                (*items, Dots("here", [p] * 3, now)),
                (0, 1), (-0.6, 0.6), "p(A)", "gradient by A's logit",
            ),
        ),
        f"p(A) = {p:.2f}: k1 in the reward and k3 times the ratio give {now[0]:.3f}, "
        f"the gradient of KL(p‖q); k3 alone gives {now[1]:.3f}, that of KL(q‖p).",
        [Readout(name, value) for name, value in zip(TERMS, now, strict=True)],
    )  # fmt: skip


def dpo(
    beta: Annotated[float, "β"] = 0.5, p: Annotated[float, "p(A)"] = 0.5
) -> Picture:
    """DPO's expected loss over p(A), when A is worth 1 more than B."""
    grid = np.round(np.linspace(0.01, 0.99, 99), 2)
    best = float(tilted_optimum(Q, np.array([1.0, 0.0]), beta)[0])
    first = 1 / (1 + np.exp(-1.0))  # Bradley-Terry: how often A is preferred

    def expected(a):
        away = [log_ratio(np.log(x), np.log(0.5)) for x in (a, 1 - a)]
        return first * dpo_loss(*away, beta) + (1 - first) * dpo_loss(*away[::-1], beta)

    away = log_ratio(np.log([p, 1 - p]), np.log(Q))
    gap = float(np.subtract(*implicit_reward(away, beta)))
    here = float(expected(np.array(p)))
    return Picture(
        "DPO rests at the tilted optimum",
        (
            Panel(
                "Expected loss, A preferred in 73.1% of pairs",
                (
                    Line("loss", grid, expected(grid)),
                    Dots("here", [p], [here]),
                    Mark("tilted optimum", x=best, side="left", color="grey"),
                ),
                (0, 1), (0.5, 1.3), "p(A)", "nats",
            ),
        ),
        f"At p(A) = {p:.2f} the implicit rewards of A and B differ by {short(gap)}. "
        f"At the tilted optimum {best:.3f} they differ by 1, as the rewards do.",
        (Readout("loss", here, "nats"), Readout("implicit gap", gap)),
    )  # fmt: skip


def compared(logged, recomputed) -> Picture:
    """KL and reward as a trainer logged them, and from its raw tensors.

    logged, recomputed: {"kl": [...], "reward": [...]}, one number a batch.
    """

    def panel(title, name, unit):
        at = np.arange(1, len(logged[name]) + 1)
        top = max(max(logged[name]), 0.01)
        return Panel(
            title,
            (
                Line("logged by TRL", at, logged[name], "grey"),
                Dots("recomputed", at, recomputed[name], "orange"),
            ),
            (0.5, len(at) + 0.5), (min(0, 1.2 * min(logged[name])), 1.2 * top),
            "batch", unit,
        )  # fmt: skip

    off = max(
        abs(a - b)
        for name in logged
        for a, b in zip(logged[name], recomputed[name], strict=True)
    )
    return Picture(
        "Logged and recomputed",
        (panel("kl", "kl", "nats a token"), panel("reward", "reward", "reward units")),
        f"The largest difference is {'below' if off < 1e-5 else 'above'} 1e-5.",
    )


def side_by_side(runs) -> Picture:
    """Exact reward and KL(p||q), before and after, of several trainers.

    runs: {name: {"reward": (before, after), "kl": after}}.
    """
    x = np.arange(len(runs))
    before, after = np.array([r["reward"] for r in runs.values()]).T
    kl = np.array([r["kl"] for r in runs.values()])
    ticks = {float(k): name for k, name in enumerate(runs)}
    limits = (-0.6, len(runs) - 0.4)
    return Picture(
        "The same task in three trainers",
        (
            Panel(
                "Expected reward, trained prompts",
                (
                    Bars("before", x - 0.2, before, "grey", 0.4),
                    Bars("after", x + 0.2, after, "blue", 0.4),
                ),
                limits, (0, 1), "", "probability of being right", xticks=ticks,
            ),
            Panel(
                "KL(p‖q) of whole answers",
                (Bars("after", x, kl, "blue", 0.5),),
                limits, (0, 1.3 * kl.max()), "", "nats", xticks=ticks,
            ),
        ),
        "Other networks and other batches: their heights are not to be ranked.",
    )  # fmt: skip
