"""Lesson 02: the gradient of J by two routes, and four ways to get it wrong."""

from functools import cache
from typing import Annotated

import numpy as np
import torch

from ..kl import entropy, kl_divergence, log_ratio, regularized_objective
from ..score import gradient_routes
from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout
from ..show.picture import short

Q = np.array([0.5, 0.5])
REWARD = np.array([1.0, 0.0])
Beta = Annotated[float, "β, reward per nat"]
P = Annotated[float, "p(A), probability of A"]
RIGHT = "direct and score"


# What each variant maximises, summed over all answers, as a trainer would
# write it. `fixed` are the sampling probabilities: they carry no gradient.
WRONG = {
    "undetached product": lambda fixed, logp, r, cost: fixed * (r - cost) * logp,
    "KL under no_grad, in the loss": lambda fixed, logp, r, cost: (
        fixed * (r * logp - cost.detach())
    ),
    "k1 as a loss": lambda fixed, logp, r, cost: fixed * (r * logp - cost),
    "KL counted twice": lambda fixed, logp, r, cost: (
        fixed * (r - cost).detach() * logp - logp.exp() * cost
    ),
}
VARIANTS = tuple(WRONG)


def gradient(variant, logits, q, reward, beta):
    """The expected gradient (A,) that a variant follows, RIGHT among them."""
    logits, q, reward = (
        torch.tensor(np.asarray(x, dtype=float)) for x in (logits, q, reward)
    )
    if variant == RIGHT:
        return gradient_routes(logits, q, reward, beta)[0].numpy()
    logp = logits.requires_grad_().log_softmax(-1)
    cost = beta * (logp - q.log())
    maximised = WRONG[variant](logp.detach().exp(), logp, reward, cost).sum()
    return torch.autograd.grad(maximised, logits)[0].numpy()


SYMPTOMS = {
    VARIANTS[0]: "The excess is β·∇H(p), a bonus for entropy: the policy stays more "
    "random than this β explains.",
    VARIANTS[1]: "The logged loss contains the penalty, the gradient does not: "
    "KL runs as with β = 0.",
    VARIANTS[
        2
    ]: "Its expected gradient is 0: KL runs as with β = 0. β only changes the noise.",
    VARIANTS[3]: "KL comes to rest where 2β would put it.",
}


def extra_term(beta: Beta = 0.1, p: P = 0.8) -> Picture:
    """The product rule's second term, answer by answer, and on average."""
    now = np.array([p, 1 - p])
    score = np.array([1 - p, -p])  # of A and B, with respect to logit A
    extra = -beta * score
    weighted = now * extra
    x = np.arange(2)
    return Picture(
        "The second term of the product rule",
        (
            Panel(
                "For one sampled answer",
                (Bars("−β · score", x, extra, "orange", 0.5),),
                (-0.6, 1.6), (-0.5, 0.5), "answer", "gradient of logit A",
                xticks={0: "A", 1: "B"},
            ),
            Panel(
                "Weighted with its probability",
                (
                    Bars("p · (−β · score)", x, weighted, "blue", 0.5),
                    Bars("sum", [2.0], [weighted.sum()], "green", 0.5),
                ),
                (-0.6, 2.6), (-0.15, 0.15), "answer", "gradient of logit A",
                xticks={0: "A", 1: "B", 2: "sum"},
            ),
        ),
        "One sample never gives 0, and the two weighted bars always cancel.",
        (
            Readout("A", extra[0]),
            Readout("B", extra[1]),
            Readout("mean under p", weighted.sum()),
        ),
    )  # fmt: skip


def wrong_gradients(
    variant: Annotated[str, "wrong variant"] = VARIANTS[0], beta: Beta = 0.3
) -> Picture:
    """A wrong variant beside the right gradient, over all policies."""
    a, right, wrong = POLICIES, _gradients(RIGHT, beta), _gradients(variant, beta)
    here = int(np.argmin(abs(a - 0.8)))
    return Picture(
        "The gradient over all policies, right and wrong",
        (
            Panel(
                "q = [0.3, 0.7], R = [1, 0]",
                (
                    Line(RIGHT, a, right),
                    Line("this variant", a, wrong, "orange", "dash"),
                    Dots("", [0.8, 0.8], [right[here], wrong[here]]),
                    Mark("0", y=0, color="grey"),
                ),
                (0, 1), (-0.25, 0.35), "p(A)", "gradient of logit A",
            ),
        ),
        SYMPTOMS[variant],
        (
            Readout("right at p(A) = 0.8", right[here], digits=4),
            Readout("this one", wrong[here], digits=4),
        ),
    )  # fmt: skip


POLICIES = np.round(np.linspace(0.02, 0.98, 49), 2)


@cache
def _gradients(variant, beta):
    logits = np.log(np.stack([POLICIES, 1 - POLICIES], axis=1))
    rows = [gradient(variant, z, [0.3, 0.7], REWARD, beta)[0] for z in logits]
    return np.array(rows)


@cache
def trained(variant, beta, steps=60, rate=1.0):
    """Policies (steps+1, 2) of gradient ascent with a variant's gradient."""
    logits, policies = np.log([0.5, 0.5]), []
    for _ in range(steps + 1):
        p = np.exp(logits) / np.exp(logits).sum()
        policies.append(p)
        logits = logits + rate * gradient(variant, logits, [0.3, 0.7], REWARD, beta)
    return np.array(policies)


def symptoms(
    variant: Annotated[str, "wrong variant"] = VARIANTS[0], beta: Beta = 0.4
) -> Picture:
    """What a training log shows: KL and entropy along a run."""
    right, wrong = trained(RIGHT, beta), trained(variant, beta)
    step, q = np.arange(len(right)), np.array([0.3, 0.7])
    panels = [
        Panel(
            title,
            (
                Line("right", step, f(right)),
                Line("this variant", step, f(wrong), "orange", "dash"),
            ),
            (0, step[-1]), (0, top), "update", "nats",
        )
        for title, f, top in (
            ("KL(p‖q)", lambda p: kl_divergence(p, q), 1.3),
            ("Entropy H(p)", entropy, 0.75),
        )
    ]  # fmt: skip
    return Picture(
        "The logs of two runs",
        panels,
        SYMPTOMS[variant],
        (
            Readout("KL at the end, right", kl_divergence(right[-1], q)),
            Readout("this variant", kl_divergence(wrong[-1], q)),
        ),
    )


def minibatches(sizes, means, spreads, exact, sigma) -> Picture:
    """Sampled gradients against the exact one, with their error bars.

    sizes, means, spreads: (K,): over many minibatches of each size, the mean
    gradient and its standard deviation. sigma: that of one sample, exact.
    """
    sizes = np.asarray(sizes, float)
    return Picture(
        "Sampled gradients over the size of the minibatch",
        (
            Panel(
                "Mean and standard deviation of minibatch gradients",
                (
                    Line("exact ± σ/√n", sizes, exact + sigma / sizes**0.5, "grey", "dash"),
                    Line("", sizes, exact - sigma / sizes**0.5, "grey", "dash"),
                    Dots("measured mean", sizes, means, "blue"),
                    Dots("mean ± measured σ", sizes, means + spreads, "orange"),
                    Dots("", sizes, means - spreads, "orange"),
                    Mark("exact", y=exact),
                ),
                (0.8, 6000), (0, 0.3), "n, samples in a minibatch",
                "gradient of logit A",
                xticks={float(n): short(n) for n in sizes}, log_x=True,
            ),
        ),
        f"The exact mean is {exact:.3f} for every n. The spread falls as 1/√n: "
        "four times the samples, half the noise.",
    )  # fmt: skip


def objective_and_slope(p: P = 0.8, beta: Beta = 0.5) -> Picture:
    """J over the logit of A, and the tangent that the score route predicts."""
    z = np.linspace(-4, 4, 161)
    a = 1 / (1 + np.exp(-z))
    curve = regularized_objective(np.stack([a, 1 - a], 1), Q, REWARD, beta)
    here = np.log(p / (1 - p))
    now = np.array([p, 1 - p])
    worth = REWARD - beta * log_ratio(np.log(now), np.log(Q))
    slope = float(np.sum(now * worth * np.array([1 - p, -p])))
    value = regularized_objective(now, Q, REWARD, beta)
    run = np.array([-1.5, 1.5])
    return Picture(
        "The objective over a logit, with its tangent",
        (
            Panel(
                "J along logit A, logit B held at 0",
                (
                    Line("J", z, curve),
                    Line("slope", here + run, value + slope * run, "orange"),
                    Dots("this policy", [here], [value]),
                ),
                (-4, 4), (-0.3, 1.2), "logit of A", "reward units",
            ),
        ),
        f"At p(A) = {p:g} the slope is {short(slope)}: "
        f"{'raising p(A) still pays.' if slope > 0 else 'p(A) is too high for this β.'}",
        (Readout("J", value), Readout("slope", slope, digits=4)),
    )  # fmt: skip
