"""Lesson 07: a training run, its two faces, and what beta does about them.

The functions take what a run measured as plain numbers and arrays; none of
them trains. `drawn` and `ends` return a function for `explore`.
"""

import math
from typing import Annotated

import numpy as np

from ..show import Bars, Dots, Line, Mark, Panel, Picture, Readout
from ..show.picture import short

LOOKS = {
    "trained": ("blue", "solid"),
    "other train": ("sky", "dot"),
    "held out": ("orange", "dash"),
}
BINS = np.linspace(0, 1, 11)


def curves(history, updates) -> Picture:
    """Exact reward and KL over the updates, for each group of prompts.

    history: at, exact[group][measure], as a run keeps them; empty before it
    begins. updates: where the x axis ends, so a run under way keeps its scale.
    """
    exact = history.exact or {n: {"reward": [], "kl": []} for n in LOOKS}
    names = [name for name in LOOKS if name in exact]
    kl = {name: exact[name]["kl"] or [0.0] for name in names}
    says = "The policy is warmed up first."
    if history.at:
        now = {name: exact[name]["reward"][-1] for name in names}
        says = (
            f"After {history.at[-1]} updates: reward {now['trained']:.3f} on the "
            f"prompts that are trained, {now['held out']:.3f} on those held out."
        )

    def lines(measure):
        return [
            Line(name, history.at, exact[name][measure], *LOOKS[name]) for name in names
        ]

    return Picture(
        "The run, exactly",
        (
            Panel(
                "Expected reward",
                lines("reward"),
                (0, updates), (0, 1.05), "updates", "probability of being right",
            ),
            Panel(
                "KL(p‖q) of whole answers",
                lines("kl"),
                (0, updates), (0, _above(max(map(max, kl.values())))), "updates", "nats",
            ),
        ),
        says,
        [
            Readout(f"KL, {name}", kl[name][-1], "nats")
            for name in ("trained", "held out")
        ],
    )  # fmt: skip


def drawn(p, right):
    """For `explore`: one prompt's 100 answers, and the one a number u gives.

    p: (100,) probabilities. right: the right answer.
    """
    p = np.asarray(p)
    ends = np.cumsum(p)
    low, high = max(right - 15, 0), min(right + 15, 99)

    def answer(u: Annotated[float, "u"] = 0.5) -> Picture:
        got = min(int(np.searchsorted(ends, u, side="right")), 99)
        start = ends[got] - p[got]
        at = np.arange(100)
        # a stair: the sum stays until the next answer, then steps up by its p
        x, y = np.repeat(at, 2) + np.tile([-0.5, 0.5], 100), np.repeat(ends, 2)
        kind = "right" if got == right else "wrong"
        return Picture(
            "From a number to an answer",
            (
                Panel(
                    "Probability of each answer",
                    (
                        Bars("", at, p, "sky"),
                        Bars("sampled", [got], [p[got]], "orange"),
                        Mark("right", x=right, color="grey"),
                    ),
                    (low - 1, high + 1), (0, 1), "answer", "probability",
                ),
                Panel(
                    "Running sum of the probabilities",
                    (
                        Line("running sum", x, y),
                        Mark("u", y=u, color="orange"),
                        Dots("sampled", [got], [u], "orange"),
                    ),
                    (low - 1, high + 1), (0, 1.02), "answer", "probability",
                ),
            ),
            f"u = {u:.2f} falls on the stretch from {start:.3f} to {ends[got]:.3f}, "
            f"which belongs to {got}: {kind}.",
            (Readout("sampled answer", got, digits=0), Readout("its p", p[got])),
        )  # fmt: skip

    return answer


def estimated(history) -> Picture:
    """KL as the batches estimate it, beside the exact one at the same updates."""
    exact = history.exact["trained"]["kl"]
    sampled = history.log_ratio
    at = np.arange(len(sampled))
    low, high = min(0.0, *sampled), max(*sampled, *exact)
    below = sum(x < 0 for x in sampled)
    return Picture(
        "Sampled KL and exact KL",
        (
            Panel(
                "KL(p‖q) on the trained prompts",
                (
                    Line("mean log-ratio of a batch", at, sampled, "sky"),
                    Dots("exact", history.at, exact),
                    Mark("", y=0, color="grey"),
                ),
                (0, len(sampled)), (1.1 * low - 0.002, 1.1 * high), "updates", "nats",
            ),
        ),
        f"The batches scatter about the exact KL; {below} of {len(sampled)} are "
        "below 0. An exact KL never is.",
        (Readout("exact, at the end", exact[-1], "nats", 4),),
    )  # fmt: skip


def histogram(values):
    """Share of prompts in each tenth of [0, 1]."""
    counts, _ = np.histogram(np.clip(values, 0, 1), BINS)
    return counts / len(values)


def prompts_apart(before, after, groups) -> Picture:
    """How the right answer's probability is spread over prompts, before and after.

    before, after: (N,) probabilities. groups: indices by name.
    """
    panels = [
        _spread(
            f"{name.capitalize()}: {len(groups[name])} prompts",
            *(histogram(x[groups[name]]) for x in (before, after)),
            "orange",
        )
        for name in ("trained", "held out")
    ]
    had, lost = (np.mean(x[groups["held out"]] < 0.1) for x in (before, after))
    return Picture(
        "Not worse everywhere: lost on some prompts, kept on others",
        panels,
        f"Held out: {had:.1%} of the prompts had the right answer below 0.1 before, "
        f"{lost:.1%} have after.",
    )


def _spread(title, before, after, color):
    """Shares of prompts in each tenth, side by side."""
    middle = (BINS[1:] + BINS[:-1]) / 2
    return Panel(
        title,
        (
            Bars("before", middle - 0.02, before, "grey", 0.04),
            Bars("after", middle + 0.02, after, color, 0.04),
        ),
        (0, 1), (0, 1), "probability of the right answer", "share of prompts",
    )  # fmt: skip


def by_beta(sweep) -> Picture:
    """Reward and KL over beta, mean and standard deviation over the seeds."""
    x, several = np.arange(len(sweep.betas)), len(sweep.seeds) > 1

    def panel(title, measure, high, unit):
        items = []
        for name in ("trained", "held out"):
            mean = sweep.exact[name][measure].mean(1)
            spread = sweep.exact[name][measure].std(1, ddof=several)
            color, dash = LOOKS[name]
            items += [Line(name, x, mean, color, dash), _bars(x, mean, spread, color)]
            if measure == "reward":
                side = "above" if name == "trained" else "below"
                y = sweep.start[name][measure]
                items.append(Mark(f"{name}, before", y=y, side=side, color=color))
        ticks = {float(k): f"{b:g}" for k, b in enumerate(sweep.betas)}
        limits = (-0.3, len(x) - 0.7), (0, high)
        return Panel(title, items, *limits, "β", unit, xticks=ticks)

    ends = [sweep.exact["held out"]["reward"].mean(1)[k] for k in (0, -1)]
    top = max(sweep.exact[n]["kl"].max() for n in ("trained", "held out"))
    return Picture(
        "Over β and seeds",
        (
            panel("Expected reward", "reward", 1.05, "probability of being right"),
            panel("KL(p‖q) of whole answers", "kl", _above(top), "nats"),
        ),
        f"Mean ± standard deviation of {len(sweep.seeds)} seeds. Held-out reward is "
        f"{ends[0]:.3f} at β = {sweep.betas[0]:g}, {ends[1]:.3f} at "
        f"β = {sweep.betas[-1]:g}.",
    )


def ends(sweeps):
    """For `explore`: the ends of the runs of several sweeps, prompt by prompt.

    sweeps: {setting: SweepResult}, with the same betas.
    """
    first = next(iter(sweeps))
    betas = sweeps[first].betas

    def end(
        beta: Annotated[float, "β"] = betas[0],
        setting: Annotated[str, "setting"] = first,
    ) -> Picture:
        sweep = sweeps[setting]
        k = min(range(len(betas)), key=lambda i: abs(betas[i] - beta))
        panels, names = [], ("trained", "held out")
        for name in names:
            index, runs = sweep.groups[name], [(betas[k], x) for x in sweep.seeds]
            rewards = [sweep.before, *(sweep.evaluations[run] for run in runs)]
            start, *each = (histogram(r.reward[index].cpu().numpy()) for r in rewards)
            after, color = np.mean(each, 0), LOOKS[name][0]
            title = f"{name.capitalize()} prompts"
            panels.append(_spread(title, start, after, color))
        mean = {
            (name, m): sweep.exact[name][m][k].mean()
            for name in names
            for m in ("reward", "kl")
        }
        fell = mean["held out", "reward"] - sweep.start["held out"]["reward"]
        return Picture(
            "The ends of the runs, prompt by prompt",
            panels,
            f"β = {betas[k]:g}: trained reward {mean['trained', 'reward']:.3f}, held "
            f"out {mean['held out', 'reward']:.3f}, which is {short(fell)} against "
            "the start.",
            [Readout(f"KL, {n}", mean[n, "kl"], "nats") for n in names],
        )

    return end


def noise_free(sampled, exact, updates) -> Picture:
    """Runs with sampled gradients beside the one with the exact gradient.

    sampled: histories of several seeds. exact: the history of one run.
    """

    def panel(name, low):
        lines = [
            Line("sampled" if k == 0 else "", h.at, h.exact[name]["reward"], "sky")
            for k, h in enumerate(sampled)
        ]
        line = Line(
            "exact gradient", exact.at, exact.exact[name]["reward"], "ink", "dash"
        )
        return Panel(
            f"Expected reward, {name}", (*lines, line),
            (0, updates), (low, 1.01), "updates", "probability of being right",
        )  # fmt: skip

    end = exact.exact["held out"]["reward"][-1]
    spread = [h.exact["held out"]["reward"][-1] for h in sampled]
    return Picture(
        "Sampled gradient and exact gradient",
        (panel("trained", 0.9), panel("held out", 0.3)),
        f"Held-out reward at the end: {end:.3f} with the exact gradient, "
        f"{min(spread):.3f} to {max(spread):.3f} with sampled ones.",
    )


def _bars(x, mean, spread, color):
    """Error bars as one line with gaps."""
    gap = np.full(len(x), np.nan)
    across = np.stack([x, x, gap], 1).ravel()
    upright = np.stack([mean - spread, mean + spread, gap], 1).ravel()
    return Line("", across, upright, color)


def _above(top):
    """A round upper limit for an axis."""
    step = 10.0 ** math.floor(math.log10(max(top, 0.1)))
    return step * math.ceil(1.05 * max(top, 0.1) / step * 2) / 2
