"""Lesson 03: what k1, k2, k3 estimate, and where their gradients point."""

from typing import Annotated

import numpy as np

from ..estimators import ESTIMATORS, k3
from ..kl import kl_divergence, log_ratio
from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout
from ..show.picture import short

Q = np.array([0.5, 0.5])
P = Annotated[float, "p(A), probability of A"]
NAMES = tuple(ESTIMATORS)
COLORS = dict(zip(NAMES, ("blue", "orange", "green"), strict=True))
DASHES = dict(zip(NAMES, ("solid", "dash", "dot"), strict=True))
PLACES = ("as a loss", "in the reward", "in a loss, times the ratio")


def _two(a):
    """p, l and score (each (..., 2)) of policies with p(A) = a."""
    p = np.stack([np.asarray(a), 1 - np.asarray(a)], axis=-1)
    score = np.stack([p[..., 1], -p[..., 0]], axis=-1)
    return p, log_ratio(np.log(p), np.log(Q)), score


def moments(name, a):
    """Mean and standard deviation of one sample's estimate, exactly."""
    p, l, _ = _two(a)
    k = ESTIMATORS[name](l)
    mean = np.sum(p * k, axis=-1)
    return mean, np.sqrt(np.sum(p * k**2, axis=-1) - mean**2)


def score_weight(name, place, l):
    """What multiplies the score in an estimator's gradient, by placement."""
    slope = {"k1": np.ones_like(l), "k2": l, "k3": -np.expm1(-l)}[name]
    value = ESTIMATORS[name](l)
    return dict(zip(PLACES, (slope, value, value + slope), strict=True))[place]


def gradient(name, place, a):
    """The expected gradient with respect to the logit of A: a sum over A, B."""
    p, l, score = _two(a)
    return np.sum(p * score_weight(name, place, l) * score, axis=-1)


def values(n: Annotated[float, "n, samples"] = 16, p: P = 0.8) -> Picture:
    """Mean, bias and spread of the three estimators, exactly."""
    n = int(n)
    kl = kl_divergence([p, 1 - p], Q)
    stats = {name: moments(name, p) for name in NAMES}
    a = np.linspace(0.02, 0.98, 97)
    wide = {name: stats[name][1] / n**0.5 for name in NAMES}
    best = min(wide, key=wide.get)
    return Picture(
        "What the three estimators estimate, and how surely",
        (
            Panel(
                "Mean of the estimate",
                (
                    *(
                        Line(name, a, moments(name, a)[0], COLORS[name], DASHES[name])
                        for name in NAMES
                    ),
                    Dots("here", [p] * 3, [stats[name][0] for name in NAMES]),
                ),
                (0, 1), (0, 1), "p(A)", "nats",
            ),
            Panel(
                f"Mean ± standard deviation, n = {n}",
                (
                    *(
                        Line("", [x, x], stats[name][0] + wide[name] * np.array([-1, 1]),
                             COLORS[name])
                        for x, name in enumerate(NAMES)
                    ),
                    Dots("mean", range(3), [stats[name][0] for name in NAMES]),
                    Mark("KL(p‖q)", y=kl),
                ),
                (-0.6, 3), (-0.5, 1.2), "estimator", "nats",
                xticks=dict(enumerate(NAMES)),
            ),
        ),
        f"k1 and k3 have the mean KL(p‖q) = {short(kl)}; k2 is off by "
        f"{short(stats['k2'][0] - kl)}, whatever n is."
        + (f" Here {best} spreads least." if kl > 1e-12 else ""),
        [Readout(f"σ of {name}", wide[name], "nats") for name in NAMES],
    )  # fmt: skip


def gradients(
    estimator: Annotated[str, "estimator"] = "k3",
    place: Annotated[str, "placed"] = PLACES[1],
    p: P = 0.8,
) -> Picture:
    """The gradient that an estimator gives, beside the one that is wanted."""
    a = np.linspace(0.02, 0.98, 97)
    wanted, got = gradient("k1", PLACES[1], p), gradient(estimator, place, p)
    if abs(wanted) < 1e-12:
        verdict = "both are 0 at p = q."
    elif abs(got - wanted) < 1e-12:
        verdict = "exactly the gradient of KL(p‖q)."
    elif abs(got) < 1e-12:
        verdict = "0 on average: no penalty at all."
    elif got * wanted < 0:
        verdict = "of the wrong sign: it pushes away from q."
    else:
        verdict = f"{short(got / wanted)} times what is wanted."
    return Picture(
        "The gradient of an estimator, by its place",
        (
            Panel(
                "Gradient of the penalty over all policies",
                (
                    Line("wanted: ∇KL(p‖q)", a, gradient("k1", PLACES[1], a), "grey"),
                    Line("this one", a, gradient(estimator, place, a), "orange", "dash"),
                    Dots("here", [p, p], [wanted, got]),
                    Mark("0", y=0, color="grey"),
                ),
                (0, 1.05), (-0.6, 0.6), "p(A)", "gradient of logit A",
            ),
        ),
        f"{estimator} {place}, at p(A) = {p:g}: {verdict}",
        (Readout("wanted", wanted, digits=4), Readout("this one", got, digits=4)),
    )  # fmt: skip


def off_policy(o: Annotated[float, "o(A), the sampling policy"] = 0.5) -> Picture:
    """k2 as a loss on samples of another policy, weighted and not; p(A) = .8."""
    p, l, score = _two(0.8)
    a = np.linspace(0.02, 0.98, 97)

    def plain(at):
        return np.sum(_two(at)[0] * l * score, axis=-1)

    wanted = np.sum(p * l * score)
    return Picture(
        "k2 as a loss on samples of an older policy",
        (
            Panel(
                "Expected gradient at p(A) = 0.8",
                (
                    Line("unweighted", a, plain(a), "orange", "dash"),
                    Line("weighted by w = p/o", a, 0 * a + wanted),
                    Dots("here", [o, o], [plain(o), wanted]),
                    Mark("o = p", x=0.8, side="left"),
                ),
                (0, 1), (0, 0.8), "o(A)", "gradient of logit A",
            ),
        ),
        "Only samples of p itself, or weights, give the gradient that is wanted.",
        (Readout("unweighted", plain(o), digits=4), Readout("weighted", wanted, digits=4)),
    )  # fmt: skip


def precision(l, naive, stable) -> Picture:
    """Relative error of float32 k3 over l. naive, stable: errors, (K,)."""
    floor = 1e-6  # below it errors are rounding, not alike on all machines
    lines = [
        Line(name, l, np.log10(np.maximum(error, floor)), color, dash)
        for name, error, color, dash in (
            ("exp(x) − x − 1, x = −l", naive, "orange", "dash"),
            ("k3 of rlnb, at most 1e-6", stable, "blue", "solid"),
        )
    ]
    return Picture(
        "Relative error of k3 in float32",
        (
            Panel(
                "Three terms that cancel",
                (*lines, Mark("100% wrong", y=0)),
                (1e-7, 1), (-6.5, 6), "l", "relative error",
                yticks={k: f"1e{k}" for k in range(-6, 7, 3)}, log_x=True,
            ),
        ),
        "Below l = 3e-4 no digit of the plain formula is right.",
    )  # fmt: skip


def capped(cap: Annotated[float, "cap on the value"] = 10.0) -> Picture:
    """k3 with its value capped, and the gradient that is left; p below q."""
    l = np.linspace(-4, 1, 201)
    value, edge = k3(l), _where_k3_is(cap)
    slope = -np.expm1(-l)
    held = value >= cap
    return Picture(
        "A cap on k3, and its gradient",
        (
            Panel(
                "Value",
                (
                    Line("k3", l, value, "grey", "dash"),
                    Line("capped", l, np.minimum(value, cap)),
                    Mark("cap reached", x=edge),
                ),
                (-4, 1), (0, 30), "l = log p − log q", "nats",
            ),
            Panel(
                "Slope",
                (
                    Line("k3", l, slope, "grey", "dash"),
                    Line("capped", l, np.where(held, 0, slope)),
                    Mark("cap reached", x=edge),
                ),
                (-4, 1), (-30, 2), "l = log p − log q", "",
            ),
        ),
        f"Below l = {short(edge)} the capped value has no gradient: the samples that "
        "have moved furthest are no longer held.",
        (Readout("cap reached at l", edge, "nats"),),
    )  # fmt: skip


def _where_k3_is(cap):
    low, high = -60.0, 0.0  # k3 falls towards l = 0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if k3(middle) > cap else (low, middle)
    return low


def tree_cosines(cosines) -> Picture:
    """cosines: {name: one cosine per tree} with the gradient that is wanted."""
    x = np.arange(len(next(iter(cosines.values()))))
    colors = ("grey", "blue", "orange", "green")
    width = 0.8 / len(cosines)
    return Picture(
        "Direction of the gradient on random trees",
        (
            Panel(
                "Cosine with ∇KL(p‖q), 110 logits",
                [
                    Bars(name, x + (k - (len(cosines) - 1) / 2) * width, row, c, width)
                    for k, ((name, row), c) in enumerate(
                        zip(cosines.items(), colors, strict=False)
                    )
                ],
                (-0.6, len(x) - 0.4), (-0.5, 1.1), "random tree", "cosine",
                xticks={int(k): f"seed {k}" for k in x},
            ),
        ),
        "A cosine of 1 is the right direction, 0 a useless one, below 0 a harmful one.",
    )  # fmt: skip
