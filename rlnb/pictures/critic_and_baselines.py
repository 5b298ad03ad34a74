"""Lesson 04: what may be subtracted from a return, and what it does."""

from functools import cache
from itertools import product
from typing import Annotated

import numpy as np

from ..advantages import gae, group_mean, group_standardized, leave_one_out
from ..kl import log_ratio, shaped_reward
from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout
from ..show.picture import short

P, Q = np.array([0.8, 0.2]), np.array([0.5, 0.5])
SCORE = np.array([0.2, -0.8])  # of A and B, with respect to the logit of A
AWAY = log_ratio(np.log(P), np.log(Q))
BETA = 0.1
GROUPS = {
    "no baseline": lambda returns: returns,
    "leave-one-out": leave_one_out,
    "mean with self": group_mean,
    "÷ group std": group_standardized,
}
FIRST = {"A": 0.0, "B": 1.0}  # what the first step pays
ROOMS = {"A": 0.75, "B": 0.25}  # how probably each later step pays 1
LATER = 4


def tasks(easy: float = 0.9, hard: float = 0.1) -> Picture:
    """The same reward of 1 on an easy and on a hard task."""
    x = np.arange(2)
    expected = np.array([easy, hard])
    return Picture(
        "One reward, two advantages",
        (
            Panel(
                "A reward of 1 on two tasks",
                (
                    Bars("reward", x - 0.27, [1, 1], "grey", 0.25),
                    Bars("expected", x, expected, "amber", 0.25),
                    Bars("advantage", x + 0.27, 1 - expected, "blue", 0.25),
                ),
                (-0.6, 1.6), (0, 1.1), "task", "reward units",
                xticks={0: "easy", 1: "hard"},
            ),
        ),
        f"On the easy task the reward was expected: advantage {short(1 - easy)}. "
        f"On the hard one it is news: {short(1 - hard)}.",
    )  # fmt: skip


def returns(added=0.0):
    """R - beta l of A and B, with a constant added to both rewards."""
    return shaped_reward(np.array([1.0, 0.0]) + added, AWAY, BETA)


def sample_variance(baseline, added=0.0):
    """Variance of the gradient from one sample, exactly. baseline: any shape."""
    g = (returns(added) - np.asarray(baseline)[..., None]) * SCORE
    mean = np.sum(P * g, axis=-1, keepdims=True)
    return np.sum(P * (g - mean) ** 2, axis=-1)


def best_baseline(added=0.0):
    """E[G s^2] / E[s^2]: the constant with the smallest variance."""
    weight = P * SCORE**2
    return float(np.sum(weight * returns(added)) / np.sum(weight))


def baseline(
    b: Annotated[float, "b, baseline"] = 0.0,
    added: Annotated[float, "added to every reward"] = 5.0,
) -> Picture:
    """Mean and variance of the sampled gradient over the baseline."""
    grid = np.linspace(0, 8, 161)
    g = returns(added)
    best, mean = best_baseline(added), float(P @ g)
    now = sample_variance(b, added)
    expected = float(np.sum(P * (g - b) * SCORE))
    return Picture(
        "A baseline moves the variance, not the mean",
        (
            Panel(
                "Variance of a one-sample gradient",
                (
                    Line("variance", grid, sample_variance(grid, added)),
                    Dots("this baseline", [b], [now]),
                    Mark("best", x=best, side="left"),
                    Mark("mean return", x=mean, color="grey"),
                ),
                (0, 8), (0, 10), "b", "(gradient of logit A)²",
            ),
            Panel(
                "Expected gradient",
                (
                    Line("E[(G − b)·s]", grid, np.full_like(grid, expected), "green"),
                    Dots("this baseline", [b], [expected]),
                ),
                (0, 8), (0, 0.3), "b", "gradient of logit A",
            ),
        ),
        f"With b = {b:g} one sample has a variance of {short(now)}; the best "
        f"constant, {best:.3f}, would give {short(sample_variance(best, added))}. "
        "The expected gradient does not move.",
        (
            Readout("variance", now, digits=4),
            Readout("expected gradient", expected, digits=4),
        ),
    )  # fmt: skip


@cache
def group_moments(kind, n, p=0.8):
    """Mean and variance of a group's gradient, over all 2^n groups."""
    policy = np.array([p, 1 - p])
    score = np.array([1 - p, -p])
    worth = shaped_reward([1.0, 0.0], log_ratio(np.log(policy), np.log(Q)), BETA)
    groups = np.array(list(product([0, 1], repeat=n)))
    chance = np.prod(policy[groups], axis=1)
    advantage = GROUPS[kind](worth[groups])
    gradient = np.mean(advantage * score[groups], axis=1)
    mean = np.sum(chance * gradient)
    return float(mean), float(np.sum(chance * (gradient - mean) ** 2))


def groups(
    n: Annotated[float, "n, answers a group"] = 4,
    p: Annotated[float, "p(A), probability of A"] = 0.8,
) -> Picture:
    """Expected gradient and variance of the group baselines, all groups counted."""
    n, x = int(n), np.arange(len(GROUPS))
    exact = group_moments("no baseline", 2, p)[0]
    moments = np.array([group_moments(kind, n, p) for kind in GROUPS])
    factor = moments[:, 0] / exact
    sigma = np.sqrt(moments[:, 1]) / abs(exact)
    ticks = dict(enumerate(("none", "leave-one-out", "self", "÷ std")))
    return Picture(
        "Group baselines: bias and noise",
        (
            Panel(
                "Expected gradient ÷ exact gradient",
                (Bars("factor", x, factor, "blue", 0.6), Mark("exact", y=1)),
                (-0.6, 4.2), (0, 4), "baseline", "",
                xticks=ticks,
            ),
            Panel(
                "Standard deviation ÷ exact gradient",
                (Bars("noise", x, sigma, "orange", 0.6),),
                (-0.6, 4.2), (0, 4), "baseline", "",
                xticks=ticks,
            ),
        ),
        f"n = {n}: leave-one-out is exact, the mean with self gives "
        f"{factor[2]:.3f} = (n−1)/n of it, dividing by the group's standard "
        f"deviation {factor[3]:.3f}.",
        [
            Readout(f"variance, {kind}", moments[k, 1], digits=4)
            for k, kind in enumerate(GROUPS)
            if k < 2
        ],
    )  # fmt: skip


@cache
def room_gap(lam, knows):
    """Mean and standard deviation of GAE(A) - GAE(B) at the first step.

    A pays 0 and leads to the good room, B pays 1 and leads to the bad one.
    Four steps follow; each pays 1 with probability ROOMS[action], else 0. All
    rollouts are counted. The critic sees the share `knows` of what the rooms
    differ by: 0 takes both for average, 1 is exact. Discount 1.
    """
    to_go, mean, variance = np.arange(LATER, 0, -1), {}, 0.0
    critic = {a: to_go * (0.5 + knows * (ROOMS[a] - 0.5)) for a in ROOMS}
    start = np.mean([FIRST[a] + critic[a][0] for a in ROOMS])
    for a, chance in ROOMS.items():
        flips = np.array(list(product([0.0, 1.0], repeat=LATER)))
        weight = np.prod(np.where(flips == 1, chance, 1 - chance), axis=1)
        values = [start, *critic[a]]
        estimates = np.array(
            [
                gae([FIRST[a], *later], values, None, True, 1.0, lam)[0]
                for later in flips
            ]
        )
        mean[a] = weight @ estimates
        variance += weight @ (estimates - mean[a]) ** 2
    return float(mean["A"] - mean["B"]), float(variance**0.5)


def bias_and_variance(
    lam: Annotated[float, "λ"] = 0.5,
    knows: Annotated[float, "what the critic knows"] = 0.0,
) -> Picture:
    """The estimated gap between two actions over lambda: bias and noise."""
    grid = np.round(np.linspace(0, 1, 21), 2)
    means, spreads = np.array([room_gap(float(x), round(knows, 2)) for x in grid]).T
    mean, sigma = room_gap(round(lam, 2), round(knows, 2))
    error = np.hypot(means - 1, spreads)
    verdict = (
        "It takes the worse action for the better one."
        if mean < -1e-9
        else "It sees no difference between them."
        if mean < 1e-9
        else f"It finds A better by {short(mean)}; the truth is 1."
    )
    return Picture(
        "GAE: how much better is A than B?",
        (
            Panel(
                "Estimated gap, one rollout of each action",
                (
                    Line("mean", grid, means),
                    Line("standard deviation", grid, spreads, "orange", "dash"),
                    Dots("here", [lam, lam], [mean, sigma]),
                    Mark("true gap", y=1, side="below"),
                ),
                (0, 1), (-1.2, 1.6), "λ", "reward units",
            ),
            Panel(
                "Root mean square error",
                (
                    Line("error", grid, error, "green"),
                    Dots("here", [lam], [np.hypot(mean - 1, sigma)]),
                    Mark("smallest", x=grid[np.argmin(error)]),
                ),
                (0, 1), (0, 2.2), "λ", "reward units",
            ),
        ),
        f"λ = {lam:g}. {verdict}",
        (
            Readout("bias", mean - 1),
            Readout("standard deviation", sigma),
        ),
    )  # fmt: skip


def loo_variance(sizes) -> Picture:
    """Variance with and without leave-one-out over the size of the group."""
    pairs = np.array(
        [
            [
                group_moments(kind, int(n))[1]
                for kind in ("no baseline", "leave-one-out")
            ]
            for n in sizes
        ]
    )
    return Picture(
        "A baseline that raises the variance",
        (
            Panel(
                "Variance of a group's gradient, p = [0.8, 0.2]",
                (
                    Line("no baseline", sizes, pairs[:, 0], "grey"),
                    Line("leave-one-out", sizes, pairs[:, 1], "orange", "dash"),
                    Dots("n = 4", [4, 4], pairs[list(sizes).index(4)]),
                ),
                (1.8, sizes[-1] + 0.2), (0, 0.06), "n, answers a group",
                "(gradient of logit A)²",
            ),
        ),
        f"At n = 4: {pairs[list(sizes).index(4), 0]:.6f} without, "
        f"{pairs[list(sizes).index(4), 1]:.6f} with leave-one-out.",
    )  # fmt: skip
