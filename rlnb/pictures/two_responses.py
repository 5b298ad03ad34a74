"""Lesson 01: two answers A and B, a policy p and a reference q over them."""

from functools import cache
from math import comb
from typing import Annotated

import numpy as np

from ..kl import (
    kl_divergence,
    log_ratio,
    regularized_objective,
    shaped_reward,
    tilted_optimum,
)
from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout

Q = np.array([0.5, 0.5])
P = Annotated[float, "p(A), probability of A"]
Beta = Annotated[float, "β, reward per nat"]
AB = {0: "A", 1: "B"}


def _policies(count=199):
    a = np.linspace(0.005, 0.995, count)
    return a, np.stack([a, 1 - a], axis=1)


def shaped_rewards(beta: Beta = 0.2, p: P = 0.8, reward=(1.0, 1.0)) -> Picture:
    """What each answer is worth after the penalty, and J over all policies."""
    now = np.array([p, 1 - p])
    worth = shaped_reward(reward, log_ratio(np.log(now), np.log(Q)), beta)
    objective = regularized_objective(now, Q, reward, beta)
    a, policies = _policies()
    curve = regularized_objective(policies, Q, reward, beta)
    best = tilted_optimum(Q, reward, beta)[0]
    same = reward[0] == reward[1] and beta == 0
    high = "A" if worth[0] > worth[1] + 1e-12 else "B"
    compare = (
        "both answers are worth the same"
        if abs(worth[0] - worth[1]) < 1e-12
        else f"answer {high} is worth more, so its probability is pushed up"
    )
    return Picture(
        "Shaped rewards of two answers, and the objective over all policies",
        (
            Panel(
                "What one answer is worth",
                (
                    Bars("reward R", [-0.2, 0.8], reward, "grey", 0.36),
                    Bars("R − β·(log p − log q)", [0.2, 1.2], worth, "blue", 0.36),
                    Mark("J", y=objective, color="orange"),
                ),
                (-0.6, 1.9),
                (-0.4, 2.4),
                "answer",
                "reward units",
                xticks=AB,
            ),
            Panel(
                "The objective over all policies",
                (
                    Line("J = E[R] − β·KL(p‖q)", a, curve, "orange"),
                    Dots("this policy", [p], [objective]),
                    Mark("all are best" if same else "best p(A)", x=best, side="left"),
                ),
                (0, 1),
                (0.6, 1.05) if reward[0] == reward[1] else (-0.4, 1.05),
                "p(A)",
                "reward units",
            ),
        ),
        f"With β = {beta:g} and p(A) = {p:g}, {compare}.",
        (
            Readout("worth of A", worth[0]),
            Readout("worth of B", worth[1]),
            Readout("KL(p‖q)", kl_divergence(now, Q), "nats"),
            Readout("J", objective),
        ),
    )


def sample_means(n: Annotated[float, "n, answers sampled"] = 4, p: P = 0.8) -> Picture:
    """The exact distribution of the mean of n sampled log-ratios."""
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    n = int(n)
    means, chances = mean_log_ratio(n, p)
    kl = kl_divergence([p, 1 - p], Q)
    below = [negative_share(k, p) for k in sizes]
    width = 0.9 * min(abs(means[0] - means[1]), 0.3)
    share = negative_share(n, p)
    return Picture(
        "The mean of n sampled log-ratios",
        (
            Panel(
                f"All means that {n} sampled answers can give",
                (
                    Bars("below 0", means, chances * (means < 0), "orange", width),
                    Bars("0 or above", means, chances * (means >= 0), "blue", width),
                    Mark("KL(p‖q)", x=kl),
                ),
                (-2.5, 1),
                (0, 1),
                "mean of log p − log q, nats",
                "probability",
            ),
            Panel(
                "How often the mean is negative",
                (
                    Line("", sizes, below, "grey"),
                    Dots("P(mean < 0)", sizes, below, "orange"),
                    Mark(f"n = {n}", x=n),
                ),
                (0.8, 80),
                (0, 0.5),
                "n, answers sampled",
                "probability",
                xticks={float(k): str(k) for k in sizes},
                log_x=True,
            ),
        ),
        f"With n = {n}, {share:.0%} of all minibatches print a negative mean, "
        f"though KL(p‖q) is {kl:.3f} nats.",
        (
            Readout("P(mean < 0)", share),
            Readout("mean of the means", np.sum(means * chances), "nats"),
            Readout("standard deviation", _spread(means, chances), "nats"),
        ),
    )


def mean_log_ratio(n, p):
    """(values, probabilities) of the mean of n sampled log-ratios, exactly."""
    k = np.arange(n + 1)  # how many of the n answers are B
    a, b = log_ratio(np.log([p, 1 - p]), np.log(Q))
    ways = np.array([float(comb(n, i)) for i in k])
    return (a * (n - k) + b * k) / n, ways * p ** (n - k) * (1 - p) ** k


def negative_share(n, p):
    """P(mean of n sampled log-ratios < 0), exactly."""
    means, chances = mean_log_ratio(n, p)
    return float(np.sum(chances[means < -1e-12]))


def _spread(values, chances):
    mean = np.sum(values * chances)
    return float(np.sqrt(np.sum(chances * (values - mean) ** 2)))


def directions(p: P = 0.8) -> Picture:
    """KL(p||q) and KL(q||p) over all policies."""
    a, policies = _policies()
    now = [p, 1 - p]
    to_q, to_p = kl_divergence(now, Q), kl_divergence(Q, now)
    order = "less than" if to_q < to_p - 1e-12 else "the same as"
    return Picture(
        "Two directions of the KL divergence",
        (
            Panel(
                "Which policy does the weighting?",
                (
                    Line("KL(p‖q), p weights", a, kl_divergence(policies, Q)),
                    Line("KL(q‖p), q weights", a, kl_divergence(Q, policies),
                         "orange", "dash"),
                    Dots("here", [p, p], [to_q, to_p]),
                    Mark("log 2", y=np.log(2), color="grey"),
                ),
                (0, 1.1),
                (0, 2),
                "p(A)",
                "nats",
            ),
        ),
        f"At p(A) = {p:g}, KL(p‖q) is {order} KL(q‖p). Towards p(A) = 1 the "
        "first ends at log 2 and the second has no end.",
        (
            Readout("KL(p‖q)", to_q, "nats"),
            Readout("KL(q‖p)", to_p, "nats"),
        ),
    )  # fmt: skip


def ascents(runs) -> Picture:
    """p(A) along gradient ascent. runs: {(beta, rate): array of p(A)}."""
    betas = sorted({beta for beta, _ in runs})
    colors = dict(zip(betas, ("blue", "orange", "green"), strict=False))
    rates = sorted({rate for _, rate in runs})
    dashes = dict(zip(rates, ("dash", "solid"), strict=True))
    lines = [
        Line(f"β = {b:g}, rate {r:g}", np.arange(len(a)), a, colors[b], dashes[r])
        for (b, r), a in runs.items()
    ]
    goals = [tilted_optimum(Q, [1, 0], b)[0] for b in betas]
    marks = [
        Mark(f"p*(A) at β = {b:g}", y=goal, side="above", color=colors[b])
        for b, goal in zip(betas, goals, strict=True)
    ]
    steps = len(next(iter(runs.values()))) - 1
    return Picture(
        "Gradient ascent with two β and two learning rates",
        (
            Panel(
                "β decides where it ends, the rate how soon",
                (*lines, *marks),
                (0, steps),
                (0.45, 1.05),
                "step",
                "p(A)",
            ),
        ),
        "Lines of one colour approach one height: β sets it, the rate does not.",
    )


def tilt(beta: Beta = 0.5) -> Picture:
    """The best policy for R = [1, 0], and what it reaches, over beta."""
    reward = np.array([1.0, 0.0])
    best = tilted_optimum(Q, reward, beta)
    betas, reach, distance = _tilt_over_beta()
    value = regularized_objective(best, Q, reward, beta)
    far = kl_divergence(best, Q)
    return Picture(
        "The tilted optimum over β",
        (
            Panel(
                "The reference and the best policy",
                (
                    Bars("q", [-0.2, 0.8], Q, "grey", 0.36),
                    Bars("p* = q·exp(R/β)/Z", [0.2, 1.2], best, "blue", 0.36),
                ),
                (-0.6, 1.6),
                (0, 1),
                "answer",
                "probability",
                xticks=AB,
            ),
            Panel(
                "What it reaches, and how far it went",
                (
                    Line("J*, reward units", betas, reach, "orange"),
                    Line("KL(p*‖q), nats", betas, distance, "blue", "dash"),
                    Dots("here", [beta, beta], [value, far]),
                    Mark(f"β = {beta:g}", x=beta),
                ),
                (0, 2),
                (0, 1.05),
                "β, reward per nat",
                "reward units, nats",
            ),
        ),
        (
            "With β = 0 nothing holds the policy: all of it goes to A."
            if beta == 0
            else f"A nat away from q costs {beta:g} reward, so the best policy "
            f"keeps p*(B) = {best[1]:.2g} and stops {far:.3f} nats from q."
        ),
        (
            Readout("p*(A)", best[0], digits=5),
            Readout("J*", value),
            Readout("KL(p*‖q)", far, "nats"),
        ),
    )  # fmt: skip


@cache
def _tilt_over_beta():
    reward = np.array([1.0, 0.0])
    betas = np.linspace(0, 2, 101)
    tops = np.array([tilted_optimum(Q, reward, b) for b in betas])
    pairs = zip(tops, betas, strict=True)
    reach = [regularized_objective(top, Q, reward, b) for top, b in pairs]
    return betas, reach, kl_divergence(tops, Q)


def floors() -> Picture:
    """KL(p||q) with q(B) = 0, when a floor stands in for the zero."""
    p = np.array([0.8, 0.2])
    floor = np.logspace(-16, -1, 61)
    hidden = [p @ log_ratio(np.log(p), np.log([1, f])) for f in floor]
    shown = np.array([1e-12, 1e-8, 1e-4])
    at = [p @ log_ratio(np.log(p), np.log([1, f])) for f in shown]
    return Picture(
        "What a floor under q prints instead of infinity",
        (
            Panel(
                "The floor decides the number",
                (
                    Line("KL(p‖q) with q(B) = floor", floor, hidden, "orange"),
                    Dots("1e-12, 1e-8, 1e-4", shown, at),
                ),
                (1e-16, 0.1),
                (0, 8),
                "floor under q(B)",
                "nats",
                log_x=True,
                xticks={10.0**k: f"1e{k}" for k in range(-16, 0, 3)},
            ),
        ),
        "A floor 10 times smaller adds 0.2·log 10 = 0.461 nats. "
        "The right value is infinite.",
    )
