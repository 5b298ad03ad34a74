"""Render a Picture with matplotlib, never through pyplot: nothing to close."""

import base64
import io
import textwrap

import numpy as np
from matplotlib import patheffects, rc_context
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from .picture import COLORS, DASHES, Band, Bars, Dots, Line

DPI = 100
INK = "#222222"


class Drawing(Figure):
    """A matplotlib figure that shows itself, with its description in words."""

    alt = ""

    def _repr_mimebundle_(self, **kwargs):
        return png_bundle(self)


@rc_context({"text.parse_math": False})  # a $ is a $, as under sliders
def draw(picture):
    """Return the picture as a matplotlib figure; a notebook shows it."""
    figure = Drawing(figsize=_size(picture), dpi=DPI, layout="constrained")
    figure.alt = picture.alt
    axes = figure.subplots(1, len(picture.panels), squeeze=False)[0]
    for panel, ax in zip(picture.panels, axes, strict=True):
        _draw_panel(panel, ax)
    wide = int(figure.get_figwidth() * 13.5)
    if picture.readouts:
        # a read-out is never broken over two lines: its spaces do not break
        items = (f"{r.name} = {r.text}" for r in picture.readouts)
        text = " ".join(i.replace(" ", "\u00a0") + "\u00a0" * 5 for i in items)
        figure.suptitle(
            "\n".join(textwrap.wrap(text, wide)),
            x=0.01, ha="left", fontsize=10, fontweight="bold", color=INK,
        )  # fmt: skip
    figure.supxlabel(
        "\n".join(textwrap.wrap(picture.says, wide)),
        x=0.01, ha="left", fontsize=10, color=INK,
    )  # fmt: skip
    return figure


def png_bundle(figure):
    """(data, metadata) for the notebook: a PNG, and the same in words."""
    buffer = io.BytesIO()
    # sharper than its size on the page; no version string in the file
    figure.savefig(
        buffer,
        dpi=1.5 * DPI,
        metadata={"Software": None},
        pil_kwargs={"optimize": True},
    )
    width, height = (round(DPI * inches) for inches in figure.get_size_inches())
    data = {
        "image/png": base64.b64encode(buffer.getvalue()).decode(),
        "text/plain": figure.alt,
    }
    meta = {"alt": figure.alt, "width": width, "height": height}
    return data, {"image/png": meta}


def _size(picture):
    panels = len(picture.panels)
    rows = max(len(panel.legend) for panel in picture.panels)
    width = 6.4 if panels == 1 else 4.1 * panels
    return width, 3.2 + 0.2 * rows + 0.3 * bool(picture.readouts)


def _draw_panel(panel, ax):
    ax.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    if panel.log_x:
        ax.set_xscale("log")
        ax.minorticks_off()
    ax.set(xlim=panel.xlim, ylim=panel.ylim)
    handles = [_draw_item(item, ax) for item in panel.items]
    ax.set_xticks(list(panel.xticks), list(panel.xticks.values()))
    ax.set_yticks(list(panel.yticks), list(panel.yticks.values()))
    ax.tick_params(labelsize=9, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)
    rows = panel.legend
    ax.set_title(
        panel.title, loc="left", fontsize=11, color=INK, pad=6 + 14 * len(rows)
    )
    for k, row in enumerate(rows):  # above the axes, so it covers no curve
        legend = Legend(
            ax, [handles[i] for i in row], [panel.items[i].name for i in row],
            loc="lower left", bbox_to_anchor=(-0.02, 0.99 + 0.075 * (len(rows) - 1 - k)),
            ncols=len(row), frameon=False, fontsize=9, borderpad=0.1,
            columnspacing=1.2, handlelength=1.8, handletextpad=0.5,
        )  # fmt: skip
        ax.add_artist(legend)


def _draw_item(item, ax):
    color = INK if item.color == "ink" else COLORS[item.color]
    if isinstance(item, Line):
        dash = tuple(map(int, DASHES[item.dash].split()))
        style = (0, tuple(d / 2 for d in dash)) if dash else "-"
        return ax.plot(item.x, item.y, color=color, lw=2.2, ls=style)[0]
    if isinstance(item, Dots):
        (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
        out = (item.x < x0) | (item.x > x1) | (item.y < y0) | (item.y > y1)
        y = np.where(out, np.nan, item.y)  # whole at the edge, or not there
        style = {"color": color, "ms": 6, "zorder": 5, "clip_on": False}
        return ax.plot(item.x, y, "o", **style)[0]
    if isinstance(item, Bars):
        y = _finite(item.y, ax.get_ylim())
        return ax.bar(item.x, y, item.width, color=color)
    if isinstance(item, Band):
        ends = _finite([item.x0, item.x1], ax.get_xlim())
        return ax.axvspan(*ends, color=color, alpha=0.15, lw=0)
    return _draw_mark(item, ax, color)


def _finite(values, limits):
    """The values, an infinite one at the panel's edge."""
    low, high = limits
    return np.nan_to_num(values, nan=np.nan, neginf=low, posinf=high)


def _draw_mark(mark, ax, color):
    halo = [patheffects.withStroke(linewidth=3, foreground="white")]
    if mark.y is None:
        left = mark.side == "left"
        ax.annotate(
            mark.label, (mark.x, 1), (-3 if left else 3, -2),
            xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="right" if left else "left", va="top", fontsize=9, color=color,
            path_effects=halo, zorder=6, annotation_clip=True,
        )  # fmt: skip
        return ax.axvline(mark.x, color=color, lw=1, ls=(0, (2, 2)))
    above = mark.side == "above"
    ax.annotate(
        mark.label, (1, mark.y), (-2, 2 if above else -2),
        xycoords=("axes fraction", "data"), textcoords="offset points",
        ha="right", va="bottom" if above else "top", fontsize=9, color=color,
        path_effects=halo, zorder=6, annotation_clip=True,
    )  # fmt: skip
    return ax.axhline(mark.y, color=color, lw=1, ls=(0, (2, 2)))
