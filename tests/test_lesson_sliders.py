"""Every slider of every lesson, moved in a real browser.

At each position the page must show what the formulas say. The numbers are
read off the drawing as a reader would: a point's place, by the ticks beside
it.
"""

import ast
import asyncio
import importlib
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import pytest

from rlnb.show import Bars, Dots, Line, Mark
from rlnb.show.explore import _Control

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LESSONS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))

READ = """view => ({
  says: view.querySelector('.rlnb-says p').textContent,
  readouts: [...view.querySelectorAll('.rlnb-readouts > div')]
    .map(node => node.textContent),
  panels: [...view.querySelectorAll('svg[role=img]')].map(panel => {
    const all = (css, ...names) => [...panel.querySelectorAll(css)].map(
      node => names.map(name => node.getAttribute(name)));
    const texts = css =>
      [...panel.querySelectorAll(css)].map(node => node.textContent);
    return {
      title: panel.querySelector('title').textContent,
      axes: all('.rlnb-axis', 'd'),
      xticks: texts('.rlnb-xtick'), yticks: texts('.rlnb-ytick'),
      lines: all('.rlnb-plot .rlnb-line', 'data-name', 'd'),
      dots: all('.rlnb-dot', 'data-name', 'cx', 'cy'),
      bars: all('.rlnb-bar', 'data-name', 'x', 'y', 'width', 'height'),
      marks: all('.rlnb-mark', 'data-name', 'd'),
    };
  }),
})"""


def explored(lesson):
    """(function, sliders) of each explore() call, from the lesson's source.

    Where a call needs what cells before it computed, those are run first.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{lesson}.ipynb", as_version=4)
    sources = [c.source for c in notebook.cells if c.cell_type == "code"]
    module = re.search(r"from rlnb.pictures import (\w+)", "\n".join(sources))
    calls = {
        "pictures": importlib.import_module(f"rlnb.pictures.{module[1]}"),
        "explore": lambda function, **sliders: (function, sliders),
    }
    names, waiting = dict(calls), []
    for source in sources:
        *before, last = ast.parse(source).body
        waiting += before
        if not (isinstance(last, ast.Expr) and "explore(" in ast.unparse(last)):
            waiting.append(last)
            continue
        try:
            yield eval(ast.unparse(last), names)
        except NameError:
            run(ast.unparse(ast.Module(waiting, [])), names)
            names |= calls
            waiting = []
            yield eval(ast.unparse(last), names)


def run(source, names):
    """Run cells, which may await; in a thread, since Playwright's loop is here."""
    code = compile(source, "lesson", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def all_of_it():
        if (waiting := eval(code, names)) is not None:
            await waiting

    with redirect_stdout(None), ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, all_of_it()).result()


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_slider_shows_the_formulas_numbers(lesson, run_notebook):
    page = run_notebook(lesson)
    calls = list(explored(lesson))
    views = page.locator(".rlnb:has(input)")  # a live picture has no slider
    assert views.count() == len(calls) >= 1
    for k, (function, sliders) in enumerate(calls):
        view = views.nth(k)
        view.scroll_into_view_if_needed()
        start = {
            name: inspect.signature(function).parameters[name].default
            for name in sliders
        }
        for name, positions in sliders.items():
            control = _Control(function, name, positions)
            move = pick if control.texts else step_and_drag
            move(view, control, partial(check, view, function, start))


def step_and_drag(view, control, check_at):
    slider = view.get_by_role("slider", name=control.label, exact=True)
    slider.press("Home")
    keys = view.page.keyboard
    for value in control.values:
        check_at(**{control.name: value})
        keys.press("ArrowRight")
    box = slider.bounding_box()
    x, y = box["x"], box["y"] + box["height"] / 2
    mouse = view.page.mouse
    mouse.move(x + box["width"] - 6, y)
    mouse.down()
    mouse.move(x + box["width"] / 2, y, steps=5)
    text = slider.get_attribute("aria-valuetext")
    texts = control.spec()["texts"]
    assert 0 < texts.index(text) < len(texts) - 1, "a drag moves the slider"
    check_at(**{control.name: control.values[texts.index(text)]})
    mouse.move(x - 5, y, steps=5)
    mouse.up()
    check_at(**{control.name: control.values[0]})
    for _ in range(control.values.index(control.start)):
        keys.press("ArrowRight")
    check_at()


def pick(view, control, check_at):
    for value in [*control.values, control.start]:
        view.get_by_role("radio", name=value, exact=True).check()
        check_at(**{control.name: value})


def check(view, function, start, **moved):
    """What the page shows is the picture at these slider values."""
    picture, shown = function(**start | moved), view.evaluate(READ)
    assert shown["says"] == picture.says
    assert shown["readouts"] == [f"{r.name} = {r.text}" for r in picture.readouts]
    for panel, seen in zip(picture.panels, shown["panels"], strict=True):
        assert seen["title"] == panel.alt
        compare(panel, seen)


def compare(panel, seen):
    assert seen["xticks"] == list(panel.xticks.values())
    assert seen["yticks"] == list(panel.yticks.values())
    log = np.log if panel.log_x else np.asarray
    ticks = "\n".join(d for (d,) in seen["axes"])
    to_x = ruler(log([*panel.xticks]), re.findall(r"M(.+),.+v4", ticks))
    to_y = ruler([*panel.yticks], re.findall(r"M0,(.+)h-4", ticks))
    near = {"rtol": 0, "atol": 0.1}  # a tenth of a unit of the drawing

    lines = [i for i in panel.items if isinstance(i, Line)]
    for item, (name, d) in zip(lines, seen["lines"], strict=True):
        points = np.array(re.findall(r"([-\d.]+),([-\d.]+)", d), float)
        assert name == item.name
        np.testing.assert_allclose(points[:, 0], to_x(log(item.x)), **near)
        np.testing.assert_allclose(points[:, 1], to_y(item.y), **near)

    dots = [
        (item.name, to_x(log(x)), to_y(y))
        for item in panel.items
        if isinstance(item, Dots)
        for x, y in zip(item.x, item.y, strict=True)
        if panel.xlim[0] <= x <= panel.xlim[1]
        if panel.ylim[0] <= y <= panel.ylim[1]
    ]
    assert [d[0] for d in seen["dots"]] == [d[0] for d in dots]
    for at, there in zip(dots, seen["dots"], strict=True):
        np.testing.assert_allclose(np.array(there[1:], float), at[1:], **near)

    bars = [
        (to_x(x - item.width / 2), to_y(max(y, 0)), abs(to_y(y) - to_y(0)))
        for item in panel.items
        if isinstance(item, Bars)
        for x, y in zip(item.x, item.y, strict=True)
    ]
    for at, (_, x, y, _, height) in zip(bars, seen["bars"], strict=True):
        there = np.array([x, y, height], float)
        np.testing.assert_allclose(there, at, **near)

    marks = [i for i in panel.items if isinstance(i, Mark)]
    for item, (name, d) in zip(marks, seen["marks"], strict=True):
        x, y, upright = re.match(r"M(.+),(.+?)(V|H)", d).groups()
        assert (name, upright == "V") == (item.label, item.y is None)
        at, expected = (x, to_x(log(item.x))) if item.y is None else (y, to_y(item.y))
        np.testing.assert_allclose(float(at), expected, **near)


def ruler(numbers, places):
    """Where a number stands on an axis, measured between the outer ticks."""
    numbers = np.asarray(numbers, float)
    places = np.array(places, float)
    assert len(places) == len(numbers)
    scale = (places[-1] - places[0]) / (numbers[-1] - numbers[0])
    return lambda value: places[0] + (np.asarray(value) - numbers[0]) * scale
