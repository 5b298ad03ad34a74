"""Sliders without a browser: what Python hands over, and what it refuses."""

import functools
import importlib
import itertools
from typing import Annotated

import numpy as np
import pytest

from rlnb.clipping import clipped_surrogate
from rlnb.show import (
    Band,
    Bars,
    Dots,
    Line,
    Live,
    Mark,
    Panel,
    Picture,
    Readout,
    draw,
    explore,
)

pytestmark = pytest.mark.filterwarnings("error")
module = importlib.import_module("rlnb.show.explore")
X = np.linspace(0.01, 2, 20)


def clip(
    eps: Annotated[float, "ε, clip range"] = 0.2,
    w: Annotated[float, "w = p/o"] = 1.4,
    sign: str = "A > 0",
    n: int = 3,
):
    """Everything a picture can hold, as far as the four arguments move it."""
    a = 2.0 if sign == "A > 0" else -2.0
    panels = [
        Panel(
            f"A = {a:+g}",
            [
                Band("range", 1 - eps, 1 + eps),
                Line("wA", X, X * a, "grey", "dash"),
                Line("surrogate", X, clipped_surrogate(X, a, eps)),
                Mark("1+ε", x=1 + eps),
                Mark("level", y=0),
                Dots("here", [w], [clipped_surrogate(w, a, eps)]),
            ],
            (0, 2),
            (-4, 4),
            "w",
        ),
        Panel("n", [Bars("n", range(n), range(n))], (0, 9), (0, 9)),
    ]
    return Picture("Clip", panels, f"{sign}, w={w:.2f}", [Readout("ε", eps)])


GRIDS = [
    {"eps": (0.1, 0.5, 0.1)},
    {"eps": (0.1, 0.5, 0.1), "w": [0.5, 1.4, 1.5]},
    {"w": (0.2, 1.6, 0.2), "sign": ["A > 0", "A < 0"]},
    {"n": (1, 4, 1), "sign": ["A < 0", "A > 0"], "eps": [0.2, 0.3]},
]


# ---- what the page is given -------------------------------------------------------


def unpack(spec, numbers, index=b"", state=0):
    """The picture at one position, read the way explore.js reads it."""
    numbers = np.frombuffer(numbers, "<f4")
    table = np.frombuffer(index, "<u4")
    ids = list(spec["first"])
    for k, column in enumerate(spec["changing"]):
        if len(table):
            ids[column] = table[state * len(spec["changing"]) + k]

    def fill(node):
        if isinstance(node, list):
            return [fill(child) for child in node]
        if not isinstance(node, dict):
            return node
        if "$" not in node:
            return {key: fill(child) for key, child in node.items()}
        k = ids[node["at"]]
        if node["$"] == "text":
            return spec["texts"][k]
        values = numbers[spec["starts"][k] : spec["starts"][k + 1]]
        return values[0] if node["$"] == "number" else values

    return fill(spec["template"])


def assert_is(unpacked, picture):
    """Numbers to float32, texts to the letter."""
    assert unpacked["says"] == picture.says
    readouts = [{"name": r.name, "text": r.text} for r in picture.readouts]
    assert unpacked["readouts"] == readouts
    for got, panel in zip(unpacked["panels"], picture.panels, strict=True):
        for name in ("title", "xlabel", "ylabel", "legend", "log_x"):
            assert got[name] == getattr(panel, name)
        assert f"{got['title']}: {'; '.join(got['alt'])}" == panel.alt
        for name in ("xlim", "ylim"):
            same(got[name], getattr(panel, name))
        for name in ("xticks", "yticks"):
            ticks = getattr(panel, name)
            same(got[name]["at"], [*ticks])
            assert got[name]["text"] == [*ticks.values()]
        for at, item in zip(got["items"], panel.items, strict=True):
            assert at["kind"] == type(item).__name__
            for name, value in vars(item).items():
                if name not in ("color", "dash"):
                    same(at[name], value)


def same(got, value):
    if isinstance(value, (str, type(None))):
        assert got == value
    else:
        np.testing.assert_array_equal(got, np.float32(value))


@pytest.mark.parametrize("sliders", GRIDS, ids=lambda g: "-".join(g))
def test_every_position_carries_the_pictures_own_numbers(sliders):
    view = explore(clip, **sliders)
    controls = view.spec["controls"]
    assert not view.spec["asks"]
    grid = itertools.product(*(control["values"] for control in controls))
    count = 0
    for state, values in enumerate(grid):
        at = dict(zip(sliders, values, strict=True))
        got = unpack(view.spec, view.numbers, view.index, state)
        assert_is(got, clip(**at))
        count += 1
    assert count == np.prod([len(c["values"]) for c in controls]) > 4


def test_what_a_slider_does_not_change_is_handed_over_once():
    def flat(eps=0.1):
        lines = [Line("a", X, X * 0 + eps), Line("b", X, X * 0 + eps)]
        return Picture("t", [Panel("p", lines, (0, 2), (0, 1))], "says")

    view = explore(flat, eps=(0.1, 1.0, 0.1))
    # x once for all, and one y for each of the ten positions
    assert 11 * 20 * 4 <= len(view.numbers) < 11 * 20 * 4 + 100
    assert len(view.index) == 4 * 10 * len(view.spec["changing"])


def test_a_slider_that_changes_nothing_leaves_one_picture():
    view = explore(lambda k=1: clip(), k=(1, 4, 1))
    assert view.index == b"" and view.spec["changing"] == []
    assert_is(unpack(view.spec, view.numbers), clip())


# ---- positions and values ----------------------------------------------------------


LINEAR = np.linspace(0.1, 0.3, 3)
ROLES = ["actor", "on-policy", "critic"]


@pytest.mark.parametrize(
    "name, given, values, texts, step",
    [
        # exact decimals, though .1 + 2 * .1 is .30000000000000004
        ("eps", (0.1, 0.3, 0.1), [0.1, 0.2, 0.3], "0.1 0.2 0.3", 0.1),
        ("eps", (-0.2, 0.25, 0.2), [-0.2, 0.0, 0.2], "−0.2 0.0 0.2", 0.2),
        ("eps", LINEAR, [0.1, 0.2, 0.3], "0.1 0.2 0.3", 0.1),
        ("eps", [0.01, 0.2, 10], [0.01, 0.2, 10.0], "0.01 0.2 10", None),
        ("eps", [1e-8, 0.2, 1], [1e-8, 0.2, 1.0], "1e−08 0.2 1", None),
        ("n", (1, 3, 1), [1, 2, 3], "1 2 3", 1),
        ("n", [1, 2, 4, 8], [1, 2, 4, 8], "1 2 4 8", None),
        ("n", (1, 2, 0.5), [1.0, 1.5, 2.0], "1.0 1.5 2.0", 0.5),
        ("role", ROLES, ROLES, "actor on-policy critic", None),
        ("role", tuple(ROLES), ROLES, "actor on-policy critic", None),
    ],
)
def test_positions(name, given, values, texts, step):
    def still(eps=0.2, n=2, role="actor"):
        return clip()

    (control,) = explore(still, **{name: given}).spec["controls"]
    assert control["values"] == values
    assert [*map(type, control["values"])] == [*map(type, values)]
    assert control["texts"] == texts.split()
    assert control["step"] == step


def test_labels_and_starts_come_from_the_parameters():
    sliders = explore(clip, eps=(0.1, 0.5, 0.1), sign=["A < 0", "A > 0"])
    eps, sign = sliders.spec["controls"]
    assert (eps["name"], eps["label"]) == ("eps", "ε, clip range")
    assert (sign["name"], sign["label"]) == ("sign", "sign")
    assert (eps["choice"], sign["choice"]) == (False, True)
    assert (eps["start"], sign["start"]) == (1, 1)
    assert (sliders.eps, sliders.sign) == (0.2, "A > 0")


def test_a_value_that_is_set_goes_to_the_nearest_position():
    view = explore(clip, eps=(0.1, 0.5, 0.1), n=(1, 4, 1), sign=["A > 0", "A < 0"])  # fmt: skip
    seen = []
    view.observe(lambda change: seen.append(change["new"]), "eps")
    view.eps = 0.27
    view.eps = 9
    view.n = 2.2
    view.sign = "A < 0"
    assert (view.eps, view.n, type(view.n), view.sign) == (0.5, 2, int, "A < 0")
    assert seen == [0.3, 0.5]
    assert view.picture.alt == clip(0.5, sign="A < 0", n=2).alt


@pytest.mark.parametrize(
    "name, value", [("sign", "A = 0"), ("eps", "big"), ("eps", float("nan"))]
)
def test_a_value_that_is_no_position_changes_nothing(name, value):
    view = explore(clip, eps=(0.1, 0.5, 0.1), sign=["A > 0", "A < 0"])
    before = getattr(view, name)
    with pytest.raises(ValueError, match=f"{name} is {value!r}; allowed: "):
        setattr(view, name, value)
    assert getattr(view, name) == before


# ---- what is refused ------------------------------------------------------------------


def unequal(eps=0.1):
    lines = [Line("a", X, X)] * (1 + (eps > 0.25))
    return Picture("t", [Panel("p", lines, (0, 2), (0, 1))], "says")


def raising(eps=0.1):
    if eps > 0.25:
        raise KeyError("temperature")
    return clip(eps)


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: explore(clip), ["[]", "one, two or three"]),
        (
            lambda: explore(
                lambda a=1, b=1, c=1, d=1: clip(),
                **dict.fromkeys("abcd", (0, 1, 1)),
            ),
            ["['a', 'b', 'c', 'd']", "one, two or three"],
        ),
        (lambda: explore(clip, beta=(0, 1, 0.1)), ["'beta'", "eps, w, sign"]),
        (lambda: explore(lambda b: clip(), b=(0, 1, 1)), ["'b'", "default"]),
        (lambda: explore(clip, eps=(0.1, 0.3)), ["eps", "0.2", "[0.1, 0.3]"]),
        (lambda: explore(clip, sign=["x", "y"]), ["sign", "'A > 0'", "x, y"]),
        (lambda: explore(clip, eps=["x", "y"]), ["eps", "0.2", "x, y"]),
        (lambda: explore(lambda index=1: clip(), index=(0, 2, 1)),
         ["'index'", "widget"]),
        (lambda: explore(lambda layout=1: clip(), layout=(0, 2, 1)),
         ["'layout'", "widget"]),
        (lambda: explore(unequal, eps=(0.1, 0.5, 0.1)),
         ["unequal(eps=0.3)", "the same at every"]),
        (lambda: explore(raising, eps=(0.1, 0.5, 0.1)),
         ["raising(eps=0.3)", "temperature"]),
        (lambda: explore(lambda eps=1: 5, eps=(1, 2, 1)), ["int", "Picture"]),
    ],
)  # fmt: skip
def test_refusals_name_what_is_wrong_and_what_is_allowed(make, named):
    with pytest.raises(ValueError) as error:
        make()
    for words in named:
        assert words in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        (0.2, 0.2, 0.1),  # one position
        (0.5, 0.1, 0.1),
        (0.1, 0.5, -0.1),
        (0.1, 0.5, 0),
        (0.1, float("inf"), 0.1),
        (0, 1, 1e-9),  # more positions than pixels
        [0.2],
        [],
        [0.2, 0.1],
        [0.1, 0.2, 0.2],
        [0.2, float("inf")],
        [0.2, float("nan")],
        ["a", "a"],
        ["a", 0.2],
        0.2,
        None,
    ],
)
def test_positions_that_are_none(bad):
    with pytest.raises(ValueError, match=r"positions of eps .* allowed: \(low"):
        explore(clip, eps=bad)


# ---- asking the kernel -------------------------------------------------------------------


@pytest.fixture
def asking(monkeypatch):
    """A view that asks, and the messages it would send to its page."""
    monkeypatch.setattr(module, "LIMIT", 1)

    def moody(eps=0.2, n=3):
        if eps > 0.45:
            raise KeyError("temperature")
        return unequal(0.5) if n == 4 else clip(eps, n=n)

    view, sent = explore(moody, eps=(0.1, 0.5, 0.1), n=(1, 4, 1)), []
    view.send = lambda content, buffers=None: sent.append((content, buffers))
    return view, sent


def test_a_grid_over_the_limit_asks_for_each_picture(asking):
    view, sent = asking
    assert view.spec["asks"]
    # until then the page shows where the sliders start
    assert_is(unpack(view.spec, view.numbers, view.index), clip(0.2, n=3))
    for ask in ([0, 0], [3, 2]):
        view._answer(view, {"ask": ask}, [])
        content, (numbers,) = sent.pop()
        right = clip([0.1, 0.2, 0.3, 0.4][ask[0]], n=1 + ask[1])
        assert_is(unpack(content, numbers), right)


def test_what_goes_wrong_is_said_and_the_next_answer_is_right(asking):
    view, sent = asking
    view._answer(view, {"ask": [4, 0]}, [])
    assert sent.pop() == ({"failed": "KeyError: 'temperature'"}, None)
    view._answer(view, {"ask": [0, 3]}, [])
    assert "the same at every slider position" in sent.pop()[0]["failed"]
    view._answer(view, {"ask": [0, 0]}, [])
    assert_is(unpack(sent[-1][0], sent[-1][1][0]), clip(0.1, n=1))


def test_what_is_over_the_limit_is_given_up_early():
    calls = []

    def large(a=0.0, b=0.0, c=0.0):
        calls.append(a)
        y = np.full(2000, a + 100 * b + 1e4 * c)
        line = Line("y", np.arange(2000), y)
        return Picture("t", [Panel("p", [line], (0, 9), (0, 9))], "says")

    grid = (0, 99, 1)
    view = explore(large, a=grid, b=grid, c=grid)  # 8 GB
    assert view.spec["asks"] and len(calls) < 200
    assert len(view.numbers) + len(view.index) < 20_000


def test_a_thousand_positions_are_a_tenth_of_the_limit():
    view = explore(clip, eps=(0.02, 0.98, 0.02), w=(0.1, 2, 0.1))
    handed_over = len(view.numbers) + len(view.index)
    handed_over += sum(len(text.encode()) for text in view.spec["texts"])
    assert not view.spec["asks"] and handed_over < 100_000


# ---- what the notebook keeps ------------------------------------------------------------------


def test_the_bundle_has_the_widget_a_still_picture_and_words():
    view = explore(clip, eps=(0.1, 0.5, 0.1))
    widget = "application/vnd.jupyter.widget-view+json"
    for eps in (0.2, 0.4):
        view.eps = eps
        data, meta = view._repr_mimebundle_()
        assert set(data) == {widget, "image/png", "text/plain"}
        assert data[widget]["model_id"] == view.model_id
        still, still_meta = draw(clip(eps))._repr_mimebundle_()
        assert data["image/png"] == still["image/png"]
        assert data["text/plain"] == clip(eps).alt
        assert meta == still_meta


def test_two_views_of_one_function_do_not_share_sliders():
    one = explore(clip, eps=(0.1, 0.5, 0.1))
    other = explore(clip, eps=(0.1, 0.5, 0.1))
    one.eps = 0.4
    assert (one.eps, other.eps) == (0.4, 0.2)


def test_a_partial_function_has_sliders_too():
    view = explore(functools.partial(clip, w=1.0), eps=(0.1, 0.5, 0.1))
    assert_is(unpack(view.spec, view.numbers, view.index), clip(0.1, w=1.0))


def test_a_live_picture_is_replaced_whole_in_one_message():
    """Another number of points, and of items, is no trouble."""
    live = Live(clip(0.1))
    assert_is(unpack(live.spec, live.numbers, live.index), clip(0.1))
    sent = []
    live.send_state = lambda key: sent.append(set(key))
    other = Picture("Other", [Panel("One", [], (0, 1), (0, 1))], "nothing yet")
    live.show(other)
    assert sent == [{"spec", "numbers"}]
    assert_is(unpack(live.spec, live.numbers, live.index), other)
