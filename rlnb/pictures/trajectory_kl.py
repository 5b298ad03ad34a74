"""Lesson 05: KL over several steps, and what a per-token view misses."""

from functools import cache
from typing import Annotated

import numpy as np

from ..kl import kl_divergence
from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout
from ..show.picture import short
from ..trajectories import (
    chain_rule_kl,
    importance_weights,
    path_log_probs,
    path_ratio,
    rao_blackwell_kl,
)

Q = np.array([0.5, 0.5])
P = Annotated[float, "p(A) of the first step"]


@cache
def second_step(divergence):
    """A policy (2,) over two tokens with KL(p||uniform) = divergence nats."""
    low, high = 0.5, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        near = kl_divergence([middle, 1 - middle], Q) < divergence
        low, high = (middle, high) if near else (low, middle)
    return np.array([low, 1 - low])


def two_steps(
    p: P = 0.8, later: Annotated[float, "KL(p‖q) after B, nats"] = 0.5
) -> Picture:
    """The chain rule on a two-step tree, with p's and with q's prefix weights."""
    grid = np.linspace(0.01, 0.99, 99)
    after_b = float(kl_divergence(second_step(later), Q))

    def parts(a):
        first = kl_divergence(np.stack([a, 1 - a], -1), Q)
        return first, first + (1 - a) * after_b, first + 0.5 * after_b

    first, right, wrong = parts(grid)
    now = [float(x) for x in parts(np.array(p))]
    check = chain_rule_kl([p, 1 - p], [Q, second_step(later)], Q, [Q, Q])
    return Picture(
        "KL of a two-step tree over the first step",
        (
            Panel(
                f"After A alike; after B KL(p‖q) = {later:g}",
                (
                    Line("first step alone", grid, first, "grey", "dot"),
                    Line("p weights the prefixes", grid, right),
                    Line("q weights them", grid, wrong, "orange", "dash"),
                    Dots("here", [p, p], now[1:]),
                ),
                (0, 1), (0, 1.4), "p(A) of the first step", "nats",
            ),
        ),
        f"B is reached with p(B) = {short(1 - p)}, so the later {short(after_b)} nats "
        f"count {short((1 - p) * after_b)}. q's weight 0.5 would give "
        f"{short(0.5 * after_b)}.",
        (
            Readout("KL(p‖q)", check, "nats", 6),
            Readout("with q's weights", now[2], "nats", 6),
        ),
    )  # fmt: skip


def long_ratio(
    ratio: Annotated[float, "ratio of every token"] = 1.1,
    length: Annotated[float, "T, tokens"] = 10,
) -> Picture:
    """The ratio of a path whose tokens all have the same ratio."""
    length = int(length)
    steps = np.arange(0, 21)
    paths = [float(path_ratio([ratio] * k)) if k else 1.0 for k in steps]
    inside = "inside" if 0.8 <= paths[length] <= 1.2 else "outside"
    return Picture(
        "The ratio of a path over its length",
        (
            Panel(
                "Every token alike",
                (
                    Line("path ratio", steps, paths),
                    Line("token ratio", steps, np.full(21, ratio), "orange", "dash"),
                    Dots("here", [length], [paths[length]]),
                    Mark("1.2", y=1.2, color="grey"),
                    Mark("0.8", y=0.8, side="below", color="grey"),
                ),
                (0, 20.5), (0, 7), "T, tokens", "p/o",
            ),
        ),
        f"Each token has the ratio {ratio:g}, inside [0.8, 1.2]. The ratio of {length} "
        f"tokens is {short(paths[length])}, {inside} it.",
        (Readout("path ratio", paths[length]), Readout("geometric mean", ratio)),
    )  # fmt: skip


def tree(seed, size=10):
    """(p_first, p_second, q_first, q_second) of a random tree, fixed by seed."""
    rng = np.random.default_rng(seed)

    def softmax(logits):
        weights = np.exp(logits)
        return weights / weights.sum(-1, keepdims=True)

    return tuple(
        softmax(rng.normal(size=shape)) for shape in ((size,), (size, size)) * 2
    )


@cache
def spreads(seed):
    """KL and the standard deviations of k1 and Rao-Blackwell of one path."""
    p_first, p_second, q_first, q_second = tree(seed)
    logp = path_log_probs(np.log(p_first), np.log(p_second))
    l = logp - path_log_probs(np.log(q_first), np.log(q_second))
    p = np.exp(logp)
    kl = float(p @ l)
    steps_p = np.stack([np.tile(p_first, (10, 1)), p_second], axis=1)
    steps_q = np.stack([np.tile(q_first, (10, 1)), q_second], axis=1)
    exact_steps = rao_blackwell_kl(steps_p, steps_q)  # one for each first token
    return (
        kl,
        float(np.sqrt(p @ (l - kl) ** 2)),
        float(np.sqrt(p_first @ (exact_steps - kl) ** 2)),
    )


def sampled(
    n: Annotated[float, "n, paths sampled"] = 16,
    seed: Annotated[float, "random tree"] = 0,
) -> Picture:
    """k1 of whole paths against the Rao-Blackwell estimate, same paths."""
    kl, k1, exact_steps = spreads(int(seed))
    sizes = 2.0 ** np.arange(0, 11)
    return Picture(
        "Two unbiased estimates of one KL",
        (
            Panel(
                "KL(p‖q) ± σ of the mean of n paths",
                (
                    Line("k1 of the path", sizes, kl + k1 / sizes**0.5, "orange", "dash"),
                    Line("", sizes, kl - k1 / sizes**0.5, "orange", "dash"),
                    Line("exact steps", sizes, kl + exact_steps / sizes**0.5),
                    Line("", sizes, kl - exact_steps / sizes**0.5),
                    Mark("KL(p‖q)", y=kl),
                    Mark(f"n = {int(n)}", x=n),
                ),
                (0.9, 1100), (-0.5, 4), "n, paths sampled", "nats",
                xticks={float(2**k): str(2**k) for k in range(0, 11, 2)}, log_x=True,
            ),
        ),
        f"With {int(n)} paths: ±{short(k1 / n**0.5)} and ±{short(exact_steps / n**0.5)} "
        f"nats. k1 needs {short((k1 / exact_steps) ** 2)} times as many paths.",
        (
            Readout("σ of k1", k1 / n**0.5, "nats"),
            Readout("σ with exact steps", exact_steps / n**0.5, "nats"),
        ),
    )  # fmt: skip


def weights(o: Annotated[float, "o(A), the sampling policy"] = 0.5) -> Picture:
    """Importance weights for p = [.8, .2], and how many samples are left."""
    p, grid = np.array([0.8, 0.2]), np.linspace(0.01, 0.99, 99)

    def share(a):
        o = np.stack([a, 1 - a], -1)
        return 1 / np.sum(o * importance_weights(np.log(p), np.log(o)) ** 2, axis=-1)

    w = importance_weights(np.log(p), np.log([o, 1 - o]))
    left = float(share(np.array(o)))
    return Picture(
        "Importance weights and effective sample size",
        (
            Panel(
                "Weights w = p/o",
                (Bars("w", [0, 1], w, "blue", 0.5), Mark("1", y=1, color="grey")),
                (-0.6, 1.8), (0, 17), "answer", "", xticks={0: "A", 1: "B"},
            ),
            Panel(
                "Share of samples that is left",
                (
                    Line("1 / E[w²] under o", grid, share(grid), "green"),
                    Dots("here", [o], [left]),
                    Mark("o = p", x=0.8, side="left"),
                ),
                (0, 1.02), (0, 1.05), "o(A)", "effective ÷ drawn",
            ),
        ),
        f"1 / E[w²] under o is {left:.3f}: a rule of thumb for how many of the samples "
        "count. It does not know what is averaged.",
        (
            Readout("w of A", w[0]),
            Readout("w of B", w[1]),
            Readout("mean weight", float(np.array([o, 1 - o]) @ w)),
            Readout("effective share", left),
        ),
    )  # fmt: skip


def costs(counts) -> Picture:
    """counts: {name: probabilities asked of the policy, for T = 1, 2, ...}."""
    lengths = np.arange(1, 1 + len(next(iter(counts.values()))))
    styles = (("orange", "solid"), ("blue", "dash"), ("green", "dot"))
    lines, fits = [], []
    for (name, row), style in zip(counts.items(), styles, strict=True):
        logs = np.log10(np.asarray(row, float))
        lines.append(Line(name, lengths, logs, *style))
        by_factor = np.polyfit(lengths, logs, 1)[0]
        by_power = np.polyfit(np.log10(lengths), logs, 1)[0]
        fits.append((name, by_factor, by_power))
    return Picture(
        "Cost of one estimate over the length",
        (
            Panel(
                "Probabilities asked of the policy, V = 10",
                lines,
                (1, lengths[-1]), (-0.2, 6.5), "T, tokens", "how many",
                yticks={k: f"1e{k}" for k in range(0, 7, 2)},
            ),
        ),
        f"Enumeration: a factor {10 ** fits[0][1]:.1f} a token, fitted; it tends to "
        f"V = 10. The others grow as T to the power {fits[1][2]:.2f} and "
        f"{fits[2][2]:.2f}.",
    )  # fmt: skip
