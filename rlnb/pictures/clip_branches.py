"""Lesson 06: the clipped surrogate, its slope, and what it does not bound."""

from functools import cache
from typing import Annotated

import numpy as np

from ..clipping import clip_fraction, clip_is_active, clipped_slope, clipped_surrogate
from ..show import Band, Bars, Dots, Line, Mark, Panel, Picture, Readout
from ..show.picture import short

Eps = Annotated[float, "ε, clip range"]
Ratio = Annotated[float, "w = p/o"]
Advantage = Annotated[float, "A, advantage"]
W = np.linspace(0.01, 2, 200)
ZOOM = (0.0, 2.0)


def branches(eps: Eps = 0.2, w: Ratio = 1.4, advantage: Advantage = -2.0) -> Picture:
    """Value and slope of the clipped surrogate over w; the case in words."""
    value = clipped_surrogate(w, advantage, eps)
    slope = clipped_slope(w, advantage, eps)
    curve, steps = _curves(eps, advantage)
    panels = []
    for title, lines, now in (
        (
            "Value: min(w·A, clip(w)·A)",
            (
                Line("w·A", W, W * advantage, "grey", "dash"),
                Line("surrogate", W, curve),
            ),
            value,
        ),
        ("Slope: what the gradient sees", (Line("slope", *steps, "orange"),), slope),
    ):
        items = (_band(eps), *lines, *_range_marks(eps), Dots("here", [w], [now]))
        panels.append(Panel(title, items, ZOOM, (-4.4, 4.4), "w = p/o", "reward units"))
    return Picture(
        "The clipped surrogate over the probability ratio",
        panels,
        case_in_words(eps, w, advantage),
        (Readout("value", value, digits=2), Readout("slope", slope, digits=2)),
    )


def case_in_words(eps, w, advantage):
    """Which of the branches (w, advantage) stands on."""
    side = "w>1+ε" if w > 1 + eps else "w<1−ε" if w < 1 - eps else "w inside"
    if advantage == 0:
        return "A=0: nothing to gain or lose, slope 0."
    sign = "A>0" if advantage > 0 else "A<0"
    slope = short(clipped_slope(w, advantage, eps))
    if clip_is_active(w, advantage, eps):
        moved = "raised" if advantage > 0 else "lowered"
        return (
            f"{sign}, {side}: clipped, slope 0. The probability was {moved} "
            "enough; this sample asks for no more."
        )
    if side == "w inside":
        return f"{sign}, {side} the range: not clipped, slope {slope}."
    return (
        f"{sign}, {side}: not clipped, slope {slope}. The policy moved the "
        "wrong way, so this sample pulls it back."
    )


@cache
def _curves(eps, advantage):
    """Value over W, and the slope with upright jumps where a plot would slant."""
    low, high = 1 - eps, 1 + eps
    x = np.array([0.01, low, low, high, high, 2])
    middles = np.array([0.005 + low / 2, 1, 1 + high / 2])
    slopes = np.repeat(clipped_slope(middles, advantage, eps), 2)
    return clipped_surrogate(W, advantage, eps), (x, slopes)


def _band(eps):
    return Band("", 1 - eps, 1 + eps)


def _range_marks(eps):
    return Mark("1−ε", x=1 - eps, side="left"), Mark("1+ε", x=1 + eps)


MISTAKES = {
    "clip first": lambda w, a, eps: np.clip(w, 1 - eps, 1 + eps) * a,
    "max for A<0": lambda w, a, eps: (
        np.minimum if a > 0 else np.maximum
    )(w * a, np.clip(w, 1 - eps, 1 + eps) * a),
    "no clip": lambda w, a, eps: w * a,
}  # fmt: skip


def mistakes(
    mistake: Annotated[str, "instead of the minimum"] = "clip first", eps: Eps = 0.2
) -> Picture:
    """The surrogate beside a well-known wrong one, for A = 2 and A = -2."""
    wrong = MISTAKES[mistake]
    a = 2.0 if mistake == "no clip" else -2.0
    panels = [
        Panel(
            f"A = {short(side)}",
            (
                _band(eps),
                Line("minimum", W, clipped_surrogate(W, side, eps)),
                Line(mistake, W, wrong(W, side, eps), "orange", "dash"),
                *_range_marks(eps),
            ),
            ZOOM,
            (0, 4.4) if side > 0 else (-4.4, 0),
            "w = p/o",
            "reward units",
        )
        for side in (2.0, -2.0)
    ]
    says = {
        "clip first": "Clipping first is flat on both sides. A sample whose "
        "probability moved the wrong way no longer pulls it back.",
        "max for A<0": "The maximum is right nowhere for A<0 outside the "
        "range: it pulls where it should rest, and rests where it should pull.",
        "no clip": "Without clipping the gain never ends: every step of the "
        "same batch asks for more.",
    }
    return Picture(
        "The minimum beside a known mistake",
        panels,
        says[mistake] + (" With this ε w = 1.4 lies inside." if eps >= 0.4 else ""),
        [
            Readout(f"minimum at A={short(a)}, w=1.4", clipped_surrogate(1.4, a, eps)),
            Readout(f"{mistake}, there", wrong(1.4, a, eps)),
        ],
    )


def two_states(rate=1.0, steps=1000, eps=0.2):
    """Ratios (steps+1, 2) of two states that share one parameter t.

    State 1 has the logit t, state 2 t + log 9; A = 1 for the same action in
    both. Plain gradient ascent on the mean surrogate from t = 0, o fixed.
    """
    logits = np.array([0.0, np.log(9)])
    old, t, ratios = _sigmoid(logits), 0.0, []
    for _ in range(steps + 1):
        p = _sigmoid(t + logits)
        ratios.append(p / old)
        slope = clipped_slope(ratios[-1], 1.0, eps)
        t += rate * np.mean(slope * p * (1 - p) / old)
    return np.array(ratios)


def no_bound(eps: Eps = 0.2) -> Picture:
    """Clipping in one state does not stop what another state does to it."""
    one, two = two_states(eps=eps).T
    step = np.arange(1, len(one))
    kept = 1 / 0.9 < 1 + eps
    at = np.array([1, 10, 100, 1000])
    return Picture(
        "Ratios of two states that share a parameter",
        (
            Panel(
                "1000 steps on one batch",
                (
                    Line("state 1, o = 0.5", step, one[1:]),
                    Line("state 2, o = 0.9", step, two[1:], "orange", "dash"),
                    Dots("", at, one[at]),
                    Mark("1+ε", y=1 + eps),
                ),
                (1, 1000),
                (1, 2.05),
                "step",
                "w = p/o",
                log_x=True,
            ),
        ),
        (
            "State 2 can never reach 1+ε, since 1/0.9 = 1.11 lies below it. "
            "It keeps pushing, and carries state 1 far past 1+ε."
            if kept
            else "Here 1+ε lies below 1/0.9 = 1.11, so state 2 is clipped too, "
            "and both ratios come to rest."
        ),
        [
            Readout(f"w of state 1 after {k} steps", one[k], digits=4)
            for k in (10, 1000)
        ],
    )


def overshoot(ratios, gradients, eps=0.2) -> Picture:
    """Adam after the gradient is 0.

    ratios: (steps+1,) of one action. gradients: (steps,), the size of the
    gradient of each step.
    """
    steps = np.arange(len(ratios))
    last = int(np.flatnonzero(gradients).max()) + 1
    return Picture(
        "Adam moves on after the gradient is 0",
        (
            Panel(
                "The ratio of one action",
                (
                    Line("w", steps, ratios),
                    Mark("1+ε", y=1 + eps),
                    Mark("gradient 0 from here", x=last),
                ),
                (0, len(ratios) - 1),
                (1, 1.7),
                "step",
                "w = p/o",
            ),
        ),
        f"After step {last}, at w = {ratios[last]:.3f}, the gradient is 0. "
        f"Momentum alone carries w to {ratios[-1]:.3f}.",
    )


def old_or_reference() -> Picture:
    """Where the first step stands with either denominator; p = o = .4, q = .2."""
    over_old, over_reference = 1.0, 2.0
    w = np.linspace(0.01, 2.4, 240)
    at = np.array([over_old, over_reference])
    values = clipped_surrogate(at, 1.0, 0.2)
    return Picture(
        "The same policy, seen by two ratios",
        (
            Panel(
                "A = 1, ε = 0.2, before any update",
                (
                    _band(0.2),
                    Line("surrogate", w, clipped_surrogate(w, 1.0, 0.2)),
                    Dots("p/o = 1, slope 1", at[:1], values[:1], "green"),
                    Dots("p/q = 2, slope 0", at[1:], values[1:], "orange"),
                    *_range_marks(0.2),
                ),
                (0, 2.4),
                (0, 1.5),
                "ratio",
                "reward units",
            ),
        ),
        "With p/q in the place of p/o this sample is clipped before the first "
        "update: it teaches nothing.",
    )


def active_clips(ratio, advantage, eps=0.2) -> Picture:
    """Which samples are clipped: by the sign of A, not by w alone."""
    ratio, advantage = np.asarray(ratio, float), np.asarray(advantage, float)
    active = clip_is_active(ratio, advantage, eps)
    outside = np.abs(ratio - 1) > eps
    row = np.arange(len(ratio))
    return Picture(
        "Samples outside the range, and samples that are clipped",
        (
            Panel(
                "One sample a row",
                (
                    _band(eps),
                    Dots("slope 0", ratio[active], row[active], "orange"),
                    Dots("slope A", ratio[~active], row[~active], "blue"),
                    *_range_marks(eps),
                ),
                (0.4, 1.6),
                (-0.6, len(ratio) + 0.2),
                "w = p/o",
                "",
                yticks={float(k): f"A = {short(a)}" for k, a in enumerate(advantage)},
            ),
        ),
        f"{np.mean(outside):.0%} of the samples lie outside the range, "
        f"{clip_fraction(ratio, advantage, eps):.0%} are clipped.",
    )


def early_stop(log_ratio, limit=0.015) -> Picture:
    """The terms whose mean decides: signed -l, and exp(l) - 1 - l."""
    l = np.asarray(log_ratio, float)
    signed, k3 = -l, np.expm1(l) - l
    x = np.arange(len(l))
    return Picture(
        "Two estimates of KL(o‖p) from the same samples",
        (
            Panel(
                "One pair of bars a sample",
                (
                    Bars("−l", x - 0.2, signed, "grey", 0.36),
                    Bars("exp(l) − 1 − l", x + 0.2, k3, "blue", 0.36),
                ),
                (-0.7, len(l) - 0.3),
                (-1, 0.6),
                "sample, with its l = log p − log o",
                "nats",
                xticks={float(k): short(v) for k, v in enumerate(l)},
            ),
        ),
        f"The signed mean of these samples is {short(signed.mean())}, below the limit "
        f"of {limit:g}. The mean of exp(l) − 1 − l is {short(k3.mean())}: stop.",
    )


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))
