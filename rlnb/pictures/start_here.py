"""Lesson 00: one question, three answers, five roles."""

from functools import cache
from typing import Annotated

import numpy as np

from ..clipping import clipped_slope
from ..kl import kl_divergence, log_ratio, shaped_reward, tilted_optimum
from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout

ANSWERS = ("right", "wrong", "vague")
REWARD = np.array([2.0, 0.5, 0.0])  # what the reward model gives each answer
ACTOR = np.array([0.4, 0.4, 0.2])
REFERENCE = np.array([0.2, 0.5, 0.3])
OLD = np.array([0.3, 0.45, 0.25])
BETA, EPS = 0.5, 0.2
TICKS = dict(enumerate(ANSWERS))

# role: (what it reads, when it changes, what breaks without it)
ROLES = {
    "actor": (
        "reads the question",
        "changes at every update",
        "Without it there is nothing to train",
    ),
    "reference": (
        "reads the question and an answer",
        "never changes",
        "Without it nothing pulls the policy back towards q",
    ),
    "reward model": (
        "reads the question and an answer",
        "does not change in this phase",
        "Without it only the penalty is left, and the policy turns into q",
    ),
    "critic": (
        "reads the question, not the answer",
        "is trained beside the actor",
        "Without it every answer of positive worth is pushed up, and the run goes past the optimum",
    ),
    "old policy": (
        "sampled the batch, of which only its log-probabilities are kept",
        "is renewed with every batch",
        "Without it no ratio is known, so nothing stops 32 updates on one batch",
    ),
}


def example() -> Picture:
    """The three policies, and the rewards with what the critic expects."""
    x = np.arange(3)
    value = float(ACTOR @ REWARD)
    return Picture(
        "Three answers to one question",
        (
            Panel(
                "How probable each policy finds an answer",
                (
                    Bars("reference q", x - 0.27, REFERENCE, "grey", 0.25),
                    Bars("old policy o", x, OLD, "amber", 0.25),
                    Bars("actor p", x + 0.27, ACTOR, "blue", 0.25),
                ),
                (-0.6, 2.6),
                (0, 0.6),
                "answer",
                "probability",
                xticks=TICKS,
            ),
            Panel(
                "What an answer is worth",
                (
                    Bars("reward", x, REWARD, "green", 0.5),
                    Mark("critic: expected under p", y=value),
                ),
                (-0.6, 2.6),
                (0, 2.2),
                "answer",
                "reward units",
                xticks=TICKS,
            ),
        ),
        "The reference finds the wrong answer the most probable. Its numbers "
        "measure habit, the rewards measure worth.",
    )


def pull(beta: Annotated[float, "β, reward per nat"] = 0.5) -> Picture:
    """The best policy between reward and reference, for one beta."""
    best = tilted_optimum(REFERENCE, REWARD, beta)
    x = np.arange(3)
    far = kl_divergence(best, REFERENCE)
    betas, over = _best_over_beta()
    styles = ("blue", "solid"), ("orange", "dash"), ("grey", "dot")
    return Picture(
        "The best policy between reward and reference",
        (
            Panel(
                "Drag β: who pulls harder?",
                (
                    Bars("reference q", x - 0.2, REFERENCE, "grey", 0.36),
                    Bars("best policy p*", x + 0.2, best, "blue", 0.36),
                ),
                (-0.6, 2.6),
                (0, 1.05),
                "answer",
                "probability",
                xticks=TICKS,
            ),
            Panel(
                "The best policy over β",
                (
                    *(
                        Line(answer, betas, over[:, k], *styles[k])
                        for k, answer in enumerate(ANSWERS)
                    ),
                    Mark(f"β = {beta:g}", x=beta),
                ),
                (0, 2),
                (0, 1.05),
                "β, reward per nat",
                "probability",
            ),
        ),
        (
            "At β = 0 the reward has it all: only the right answer is left."
            if beta == 0
            else f"At β = {beta:g} the best policy gives the right answer "
            f"{best[0]:.1%} and stays {far:.2f} nats from the reference."
        ),
        (Readout("expected reward", best @ REWARD), Readout("KL(p*‖q)", far, "nats")),
    )


@cache
def _best_over_beta():
    betas = np.linspace(0, 2, 81)
    return betas, np.array([tilted_optimum(REFERENCE, REWARD, b) for b in betas])


@cache
def tiny_run(without=None, batches=40, batch=32, reuse=32, rate=0.3):
    """Policies (batches, 3) of a small PPO-like run, one role left out.

    Each batch samples 32 answers with a fixed seed, then makes 32 updates on
    them with the clipped surrogate. The critic is exact here.
    """
    draws = np.random.default_rng(0).random((batches, batch))
    beta = 0.0 if without == "reference" else BETA
    logits, policies = np.log(ACTOR), []
    for draw in draws:
        old = _softmax(logits)
        policies.append(old)
        picked = np.minimum(np.searchsorted(np.cumsum(old), draw), 2)
        reward = np.zeros(3) if without == "reward model" else REWARD
        away = log_ratio(np.log(old), np.log(REFERENCE))
        worth = shaped_reward(reward, away, beta)
        expected = 0.0 if without == "critic" else old @ worth
        advantage = (worth - expected)[picked]
        for _ in range(0 if without == "actor" else reuse):
            p = _softmax(logits)
            ratio = p[picked] / old[picked]
            if without == "old policy":
                ratio = np.ones(batch)
            push = ratio * clipped_slope(ratio, advantage, EPS) / batch
            step = np.bincount(picked, push, 3) - p * push.sum()
            logits = logits + rate * step
    return np.array(policies)


def without(role: Annotated[str, "leave out"] = "reference") -> Picture:
    """The same small run with all five roles, and with one left out."""
    reads, changes, breaks = ROLES[role]
    whole, broken = tiny_run(), tiny_run(role)
    step = np.arange(len(whole))
    goal = tilted_optimum(REFERENCE, REWARD, BETA)
    panels = [
        Panel(
            title,
            (
                Line("all five", step, all_five, "grey"),
                Line("one left out", step, one_out, "orange", "dash"),
                Mark("best for β = 0.5", y=best, side=side, color="blue"),
            ),
            (0, len(step) - 1),
            ylim,
            "batch",
            ylabel,
        )
        for title, all_five, one_out, best, side, ylim, ylabel in (
            (
                "Probability of the right answer",
                whole[:, 0],
                broken[:, 0],
                goal[0],
                "below",
                (0, 1.02),
                "p(right)",
            ),
            (
                "Distance from the reference",
                kl_divergence(whole, REFERENCE),
                kl_divergence(broken, REFERENCE),
                kl_divergence(goal, REFERENCE),
                "below",
                (0, 1.7),
                "KL(p‖q), nats",
            ),
        )
    ]
    return Picture(
        "What breaks without one role",
        panels,
        f"The {role} {reads}, and {changes}. {breaks}: p(right) goes from "
        f"{broken[0, 0]:.2f} to {broken[1, 0]:.2f} in the first batch and ends "
        f"at {broken[-1, 0]:.2f}; with all five it ends at {whole[-1, 0]:.2f}.",
    )


def aliased(frozen, shared) -> Picture:
    """KL to a copied reference and to one that is the actor's own array."""
    step = np.arange(len(frozen))
    return Picture(
        "Two references for one run",
        (
            Panel(
                "The KL(p‖reference) that would be logged",
                (
                    Line("reference copied", step, frozen),
                    Line("reference aliased", step, shared, "orange", "dash"),
                    Dots("at the end", [step[-1]] * 2, [frozen[-1], shared[-1]]),
                ),
                (0, len(step) - 1),
                (-0.1, 1.1 * max(frozen)),
                "update",
                "KL(p‖q), nats",
            ),
        ),
        "The aliased reference moves along with the actor, so its KL is 0 at "
        "every step, and β times it is 0 for every β.",
    )


def _softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
