"""A picture carries its numbers, says them in words, and is drawn from them."""

import base64
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libraries import quick
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from rlnb.show import Band, Bars, Dots, Line, Mark, Panel, Picture, Readout, draw
from rlnb.show.picture import COLORS, DASHES, LEGEND_WIDTH, short

pytestmark = pytest.mark.filterwarnings("error")
INF, NAN = math.inf, math.nan


def panel(*items, title="KL", xlim=(0, 3), ylim=(-2, 2), **more):
    return Panel(title, items, xlim, ylim, **more)


def picture(*items, says="It grows.", readouts=(), **more):
    return Picture("Title", [panel(*items, **more)], says, readouts)


# ---- what is refused ---------------------------------------------------------


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: Line("k1", [0, 1], [0, 1, 2]), ["'k1'", "(2,)", "(3,)"]),
        (lambda: Bars("b", [[0, 1]], [[0, 1]]), ["'b'", "(1, 2)", "one axis"]),
        (lambda: Line("k1", [0], [0], "red"), ["'k1'", "'red'", "blue"]),
        (lambda: Dots("d", [0], [0], "red"), ["'d'", "'red'", "orange"]),
        (lambda: Line("k1", [0], [0], dash="--"), ["'k1'", "'--'", "solid"]),
        (lambda: Mark("m"), ["'m'", "x or y"]),
        (lambda: Mark("m", x=1, y=2), ["'m'", "not both"]),
        (lambda: Mark("m", x=1, side="above"), ["'above'", "left, right"]),
        (lambda: Mark("m", y=1, side="left"), ["'left'", "above, below"]),
        (lambda: Mark("m", x=1, color="red"), ["'m'", "'red'", "ink"]),
        (lambda: Band("b", 0, 1, "red"), ["'b'", "'red'", "grey"]),
        (lambda: Band("b", 1, 0), ["'b'", "1.0 to 0.0", "lower first"]),
        (lambda: Band("b", NAN, 0), ["'b'", "nan", "two numbers"]),
        (lambda: panel(xlim=(1, 0)), ["xlim", "'KL'", "(1.0, 0.0)", "lower"]),
        (lambda: panel(ylim=(0, INF)), ["ylim", "'KL'", "inf", "finite"]),
        (lambda: panel(ylim=(NAN, 1)), ["ylim", "'KL'", "nan", "finite"]),
        (lambda: panel(log_x=True), ["xlim", "'KL'", "> 0", "log"]),
        (lambda: Picture("t", [], "says"), ["panels", "one Panel or more"]),
    ],
)
def test_refusals_name_what_is_wrong_and_what_is_allowed(make, named):
    with pytest.raises(ValueError) as error:
        make()
    for words in named:
        assert words in str(error.value)


# ---- words ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, text",
    [
        (0.192744757, "0.193"),
        (2.4, "2.4"),
        (-16, "−16"),
        (-0.0, "0"),
        (999.4, "999"),
        (999.9, "1000"),
        (12345, "12345"),
        (2e6, "2e+06"),
        (1e-5, "1e−05"),
        (INF, "∞"),
        (-INF, "−∞"),
        (NAN, "nan"),
    ],
)
def test_short_numbers(value, text):
    assert short(value) == text


@given(st.floats(-9e5, 9e5))
@quick
def test_a_short_number_is_the_number_to_three_digits(value):
    read = float(short(value).replace("−", "-"))
    assert read == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    "readout, text",
    [
        (Readout("KL", 0.192744757, "nats"), "0.193 nats"),
        (Readout("KL", 0.192744757, digits=5), "0.19274"),
        (Readout("slope", -2, digits=0), "−2"),
        (Readout("KL", INF, "nats"), "∞ nats"),
        (Readout("KL", -INF, "nats"), "−∞ nats"),
        (Readout("slope", -0.0), "0.000"),
        (Readout("slope", -0.0004), "0.000"),
        (Readout("slope", -0.0006), "−0.001"),
        (Readout("n", np.int64(7), digits=0), "7"),
    ],
)
def test_readouts(readout, text):
    assert readout.text == text


def test_the_description_is_made_from_the_numbers():
    shown = picture(
        Line("k1", [0, 1, 2], [0.25, 9, -1.5]),
        Dots("now", [1.4], [2.8]),
        Dots("samples", range(5), range(5)),
        Bars("p", [0, 1], [0.8, 0.2]),
        Bars("counts", range(13), range(13)),
        Mark("1+ε", x=1.2),
        Mark("bound", y=-1),
        Band("range", 0.8, INF),
        Dots("none yet", [], []),
        Line("", [0, 1], [7, 7]),
        readouts=[Readout("KL", INF, "nats")],
    )
    assert shown.alt == (
        "Title. KL: k1 from 0.25 to −1.5; now at (1.4, 2.8); "
        "samples (5 points); p 0.8, 0.2; counts (13 bars); "
        "1+ε marked at x = 1.2; bound marked at y = −1; "
        "range shaded from 0.8 to ∞; none yet (no points). "
        "KL ∞ nats. It grows."
    )


def test_the_legend_names_lines_dots_bars_and_bands_row_by_row():
    long = "n" * (LEGEND_WIDTH // 2)
    shown = panel(
        Line("a", [0], [0]),
        Mark("1+ε", x=1),  # has its label beside it
        Line("", [0], [0]),  # has no name
        Band("b", 0, 1),
        Line(long, [0], [0]),
        Line(long, [0], [0]),
    )
    assert shown.legend == [[0, 3, 4], [5]]
    assert panel(Mark("1+ε", x=1)).legend == []


# ---- ticks --------------------------------------------------------------------------


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
@quick
def test_ticks_are_round_and_inside_the_limits(low, size):
    high = low + size
    for ticks in (panel(xlim=(low, high)).xticks, panel(ylim=(low, high)).yticks):
        assert 2 <= len(ticks) <= 12
        assert all(low <= at <= high for at in ticks)
        assert len(set(np.round(np.diff(list(ticks)) / size, 6))) == 1
    kept = panel(xlim=(0, 3), xticks={-1: "out", 0: "p", 3: "q", 4: "out"})
    assert kept.xticks == {0: "p", 3: "q"}


def test_ticks_of_a_log_axis_are_powers_of_ten():
    ticks = panel(xlim=(0.01, 1000), log_x=True).xticks
    assert [*ticks.values()] == ["1e-2", "1e-1", "1", "10", "100", "1000"]
    assert [*ticks] == pytest.approx([0.01, 0.1, 1, 10, 100, 1000])


# ---- drawn ---------------------------------------------------------------------------


def axes_of(*items, **more):
    return draw(picture(*items, **more)).axes[0]


def test_drawn_lines_and_dots_carry_exactly_the_numbers_given():
    x, y = np.linspace(0, 3, 50), np.random.default_rng(0).normal(size=50)
    y[7] = NAN
    ax = axes_of(Line("k1", x, y, "orange", "dash"), Dots("now", [1], [2]))
    line, dots = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), np.stack([x, y], 1))
    np.testing.assert_array_equal(dots.get_xydata(), [[1, 2]])
    assert to_hex(line.get_color()) == COLORS["orange"].lower()
    assert line.is_dashed() and dots.get_linestyle() == "None"
    assert ax.get_xlim() == (0, 3) and ax.get_ylim() == (-2, 2)


def test_drawn_bars_bands_and_marks_carry_exactly_the_numbers_given():
    ax = axes_of(
        Bars("p", [1, 2], [0.5, -1.5], width=0.4),
        Band("range", 0.8, 1.2),
        Mark("1+ε", x=1.2),
        Mark("bound", y=-1),
    )
    bars = [
        (b.get_x(), b.get_width(), b.get_y(), b.get_height()) for b in ax.containers[0]
    ]
    assert np.ravel(bars) == pytest.approx([0.8, 0.4, 0, 0.5, 1.8, 0.4, 0, -1.5])
    band = ax.patches[-1]
    assert (band.get_x(), band.get_width()) == pytest.approx((0.8, 0.4))
    upright, level = ax.lines
    assert upright.get_xdata() == [1.2, 1.2]
    assert level.get_ydata() == [-1, -1]
    assert [t.get_text() for t in ax.texts] == ["1+ε", "bound"]


def test_infinite_bars_and_bands_end_at_the_panels_edge():
    ax = axes_of(Bars("KL", [1, 2, 3], [INF, -INF, NAN]), Band("all", -INF, INF))
    up, down, gone = (bar.get_height() for bar in ax.containers[0])
    assert (up, down, math.isnan(gone)) == (2, -2, True)
    band = ax.patches[-1]
    assert (band.get_x(), band.get_width()) == (0, 3)


def test_drawn_legend_ticks_and_texts():
    figure = draw(
        picture(
            Line("cost $5 to $6", [0, 1], [0, 1]),
            Band("range", 0, 1),
            xlabel="w",
            ylabel="nats",
            xticks={1: "one"},
            readouts=[Readout("KL", 0.25, "nats")],
        )
    )
    (ax,) = figure.axes
    (legend,) = (a for a in ax.get_children() if isinstance(a, Legend))
    assert [t.get_text() for t in legend.texts] == ["cost $5 to $6", "range"]
    assert not legend.texts[0].get_parse_math()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["one"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("w", "nats")
    assert ax.get_title(loc="left") == "KL"
    assert "KL = 0.25" in figure.get_suptitle().replace("\u00a0", " ")
    assert figure.get_supxlabel() == "It grows."


def test_a_log_axis_is_drawn_as_one():
    ax = axes_of(Line("k1", [0.01, 10], [0, 1]), xlim=(0.01, 10), log_x=True)
    assert ax.get_xscale() == "log" and ax.get_xlim() == (0.01, 10)
    assert ax.get_xticks() == pytest.approx([0.01, 0.1, 1, 10])


def test_panels_stand_side_by_side():
    shown = Picture("Title", [panel(title="A"), panel(title="B")], "Two.")
    left, right = draw(shown).axes
    assert [left.get_title(loc="left"), right.get_title(loc="left")] == [*"AB"]
    assert left.get_position().x1 <= right.get_position().x0


def test_the_page_gets_a_png_and_the_same_in_words_always_the_same():
    shown = picture(Line("k1", [0, 1], [0, 1]), Mark("1+ε", x=1.2))
    figure = draw(shown)
    assert isinstance(figure, Figure)
    data, meta = figure._repr_mimebundle_()
    assert data["text/plain"] == meta["image/png"]["alt"] == shown.alt
    png = base64.b64decode(data["image/png"])
    assert png.startswith(b"\x89PNG") and b"Matplotlib" not in png
    # more pixels than its size on the page, for a sharp screen
    width, height = (int.from_bytes(png[k : k + 4]) for k in (16, 20))
    size = meta["image/png"]
    assert width / size["width"] == pytest.approx(height / size["height"], 0.01)
    assert width / size["width"] > 1.4
    assert draw(shown)._repr_mimebundle_() == (data, meta)


def test_drawing_never_imports_pyplot_and_leaves_no_figure_to_close():
    code = """
import sys
from rlnb.show import Line, Panel, Picture, draw
panel = Panel("p", [Line("k1", [0, 1], [0, 1])], (0, 1), (0, 1))
draw(Picture("t", [panel], "says"))._repr_mimebundle_()
assert "matplotlib.pyplot" not in sys.modules
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_every_colour_and_dash_is_its_own():
    assert len(set(COLORS.values())) == len(COLORS)
    assert len(set(DASHES.values())) == len(DASHES)
