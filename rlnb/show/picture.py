"""A picture is data: panels of named lines, bars, dots, marks and read-outs.

`draw` renders it with matplotlib, `explore` as SVG under sliders, tests read
its numbers, and its description in words (`alt`) is made from them.
"""

import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np

# Okabe and Ito's palette; "ink" is the text colour of the theme
COLORS = {
    "blue": "#0072B2",
    "orange": "#D55E00",
    "green": "#009E73",
    "sky": "#56B4E9",
    "pink": "#CC79A7",
    "amber": "#E69F00",
    "grey": "#7F7F7F",
    "ink": "ink",
}
DASHES = {"solid": "", "dash": "7 4", "dot": "2 3"}
LEGEND_WIDTH = 47  # characters in one row of a panel's legend


def short(value):
    """A number for reading: 0.193, 2.4, -16, ∞."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e-15:  # what is left of a sum that cancels
        return "0"
    whole = 999.5 <= abs(value) < 1e6
    text = f"{value:.0f}" if whole else f"{value:.3g}"
    return text.replace("-", "−")


@dataclass(frozen=True, eq=False)
class Line:
    """A curve through (x, y). dash: "solid", "dash" or "dot"."""

    name: str
    x: np.ndarray
    y: np.ndarray
    color: str = "blue"
    dash: str = "solid"

    def __post_init__(self):
        _points(self)
        _one_of(f"dash of {self.name!r}", self.dash, DASHES)

    def words(self):
        return f"{self.name} from {short(self.y[0])} to {short(self.y[-1])}"


@dataclass(frozen=True, eq=False)
class Dots:
    """Points at (x, y)."""

    name: str
    x: np.ndarray
    y: np.ndarray
    color: str = "ink"

    def __post_init__(self):
        _points(self)

    def words(self):
        if len(self.x) > 4:
            return f"{self.name} ({len(self.x)} points)"
        at = (f"({short(x)}, {short(y)})" for x, y in zip(self.x, self.y, strict=True))
        return f"{self.name} at {', '.join(at)}"


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars from 0 to y, centred on x, `width` wide in units of x."""

    name: str
    x: np.ndarray
    y: np.ndarray
    color: str = "blue"
    width: float = 0.8

    def __post_init__(self):
        _points(self)

    def words(self):
        if len(self.y) > 12:
            return f"{self.name} ({len(self.y)} bars)"
        return f"{self.name} {', '.join(map(short, self.y))}"


@dataclass(frozen=True, eq=False)
class Mark:
    """A thin line across the panel at x or at y, with its label beside it.

    side: where the label stands, "left" or "right" of x, "above" or "below" y.
    """

    label: str
    x: float | None = None
    y: float | None = None
    side: str = "right"
    color: str = "ink"

    def __post_init__(self):
        if (self.x is None) == (self.y is None):
            raise ValueError(f"mark {self.label!r} needs x or y, and not both")
        for name in ("x", "y"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
        sides = ("left", "right") if self.y is None else ("above", "below")
        if self.y is not None and self.side == "right":
            object.__setattr__(self, "side", "above")
        _one_of(f"side of mark {self.label!r}", self.side, sides)
        _one_of(f"color of mark {self.label!r}", self.color, COLORS)

    def words(self):
        axis, at = ("x", self.x) if self.y is None else ("y", self.y)
        return f"{self.label} marked at {axis} = {short(at)}"


@dataclass(frozen=True, eq=False)
class Band:
    """A shaded stretch of the x axis from x0 to x1."""

    name: str
    x0: float
    x1: float
    color: str = "grey"

    def __post_init__(self):
        for name in ("x0", "x1"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not self.x0 <= self.x1:
            raise ValueError(
                f"band {self.name!r} is from {self.x0} to {self.x1}; "
                "allowed: two numbers, the lower first"
            )
        _one_of(f"color of {self.name!r}", self.color, COLORS)

    def words(self):
        return f"{self.name} shaded from {short(self.x0)} to {short(self.x1)}"


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes and what stands in it, drawn in the order given.

    xlim, ylim: fixed limits; what lies outside is cut off. xticks, yticks:
    {position: label}, or None for round numbers. log_x: a logarithmic x axis.
    """

    title: str
    items: tuple
    xlim: tuple
    ylim: tuple
    xlabel: str = ""
    ylabel: str = ""
    xticks: dict | None = None
    yticks: dict | None = None
    log_x: bool = False

    def __post_init__(self):
        object.__setattr__(self, "items", tuple(self.items))
        for name in ("xlim", "ylim"):
            low, high = map(float, getattr(self, name))
            if not (math.isfinite(high - low) and low < high):
                raise ValueError(
                    f"{name} of panel {self.title!r} is {(low, high)}; "
                    "allowed: two finite numbers, the lower first"
                )
            object.__setattr__(self, name, (low, high))
        if self.log_x and self.xlim[0] <= 0:
            raise ValueError(f"xlim of panel {self.title!r} must be > 0 on a log axis")
        for name, (low, high), log in (
            ("xticks", self.xlim, self.log_x),
            ("yticks", self.ylim, False),
        ):
            ticks = getattr(self, name)
            if ticks is None:
                ticks = _powers_of_ten() if log else round_ticks(low, high)
            inside = {at: text for at, text in ticks.items() if low <= at <= high}
            object.__setattr__(self, name, inside)

    @property
    def legend(self):
        """Rows of indices into `items`: what the legend names, row by row."""
        rows, used = [[]], 0
        for i, item in enumerate(self.items):
            if isinstance(item, Mark) or not item.name:
                continue
            wide = len(item.name) + 6
            if rows[-1] and used + wide > LEGEND_WIDTH:
                rows, used = [*rows, []], 0
            rows[-1].append(i)
            used += wide
        return rows if rows[0] else []

    @property
    def words(self):
        """One phrase for each item that has a name."""
        named = (i for i in self.items if getattr(i, "name", getattr(i, "label", "")))
        return [
            item.words()
            if np.size(getattr(item, "x", 0))
            else f"{item.name} (no points)"
            for item in named
        ]

    @property
    def alt(self):
        return f"{self.title}: {'; '.join(self.words)}"


@dataclass(frozen=True)
class Readout:
    """A number in words beside the picture: name, value, unit."""

    name: str
    value: float
    unit: str = ""
    digits: int = 3

    @property
    def text(self):
        value = float(self.value)
        text = short(value) if math.isinf(value) else f"{value:.{self.digits}f}"
        if float(f"{value:.{self.digits}f}") == 0:
            text = text.lstrip("-")
        return f"{text.replace('-', '−')} {self.unit}".strip()


@dataclass(frozen=True, eq=False)
class Picture:
    """Panels side by side, read-outs above them, one or two sentences below.

    says: what the picture shows now, in words a reader can act on.
    """

    title: str
    panels: tuple
    says: str
    readouts: tuple = field(default=())

    def __post_init__(self):
        for name in ("panels", "readouts"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.panels:
            raise ValueError("panels is empty; allowed: one Panel or more")

    @property
    def alt(self):
        """The whole picture in words."""
        parts = [panel.alt for panel in self.panels]
        parts += [f"{r.name} {r.text}" for r in self.readouts]
        return f"{self.title}. {'. '.join(parts)}. {self.says}"


@cache
def round_ticks(low, high, about=5):
    """About five round positions in [low, high], with their labels."""
    from matplotlib.ticker import MaxNLocator

    at = MaxNLocator(about, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    at = [
        float(min(max(t, low), high)) if low - slack < t < high + slack else t
        for t in at
    ]
    return {t: short(t) if abs(t) > slack else "0" for t in at}


def _powers_of_ten():
    return {10.0**k: f"{10**k}" if 0 <= k <= 4 else f"1e{k}" for k in range(-12, 13)}


def _points(item):
    for name in ("x", "y"):
        value = np.atleast_1d(np.asarray(getattr(item, name), dtype=float))
        object.__setattr__(item, name, value)
    if item.x.shape != item.y.shape or item.x.ndim != 1:
        raise ValueError(
            f"{item.name!r} has x of shape {item.x.shape} and y of shape "
            f"{item.y.shape}; allowed: one axis, equal lengths"
        )
    _one_of(f"color of {item.name!r}", item.color, COLORS)


def _one_of(what, value, allowed):
    if value not in allowed:
        raise ValueError(f"{what} is {value!r}; allowed: {', '.join(allowed)}")
