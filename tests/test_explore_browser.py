"""The slider view in a real JupyterLab: what a hand and an eye meet there."""

import json
import re

import numpy as np
import pytest
from conftest import KERNEL, NOTEBOOK
from playwright.sync_api import expect

from rlnb.clipping import clipped_surrogate

pytestmark = pytest.mark.browser
W = np.linspace(0.01, 2, 200)
CELLS = [
    """
import importlib, time
from typing import Annotated
import numpy as np
from rlnb.clipping import clipped_surrogate
from rlnb.show import Band, Bars, Dots, Line, Mark
from rlnb.show import Panel, Picture, Readout, explore
module = importlib.import_module("rlnb.show.explore")
W = np.linspace(0.01, 2, 200)
Eps = Annotated[float, "ε, clip range"]

def clip(eps: Eps = 0.2, w=1.4, sign="A > 0"):
    a = 2 if sign == "A > 0" else -2
    items = [Line("surrogate", W, clipped_surrogate(W, a, eps)),
             Mark("1+ε", x=1 + eps),
             Dots("here", [w], [clipped_surrogate(w, a, eps)])]
    panel = Panel("Value", items, (0, 2), (-4, 4), "w", "reward units")
    says = f"{sign}, w={w:g}: " + "a longer sentence. " * int(20 * eps)
    return Picture("Clip", [panel], says, [Readout("ε", eps, digits=2)])
""",
    """
view = explore(clip, eps=(0.02, 0.82, 0.02))
seen = []
view.observe(lambda change: seen.append(change["new"]), "eps")
view
""",
    "view",
    """
three = explore(clip, eps=(0.1, 0.5, 0.05), w=[0.2, 0.9, 1, 1.4, 5],
                sign=["A > 0", "A < 0"])
three
""",
    """
calls = []
def slow(eps: Eps = 0.2):
    calls.append(eps)
    time.sleep(0.3)
    if eps > 0.85:
        raise KeyError("temperature")
    return clip(eps)

module.LIMIT = 1
asking = explore(slow, eps=(0.1, 0.9, 0.1))
module.LIMIT = 2**20
asking
""",
    """
def odd(k=1):
    inf, nan = np.inf, np.nan
    bars = Bars("KL", [1, 2, 3, 4], [0.5, inf, -inf, nan], width=0.5)
    gap = Line("gap", [0, 1, 2, 3, 4], [0, 1, nan, inf, 1])
    items = [bars, gap, Dots("none", [nan], [0]), Band("all", -inf, inf),
             Mark("at the right edge", x=5), Mark("nowhere", x=nan)]
    panel = Panel("Odd", items, (0, 5), (-1, 1))
    return Picture("Odd", [panel], "says", [Readout("KL", inf, "nats")])

explore(odd, k=(1, 2, 1))
""",
]


@pytest.fixture
def views(add_notebook):
    """The name of a notebook with five views, beside the lessons."""
    return add_notebook("views", CELLS, "# Below\n" * 40)


def ask_kernel(page, expression):
    return page.evaluate(
        f"""async code => {{
          const kernel = {NOTEBOOK}.{KERNEL};
          const future = kernel.requestExecute({{ code }});
          let text = "";
          future.onIOPub = m => {{ text += m.content.text ?? ""; }};
          await future.done;
          return text.trim();
        }}""",
        f"print({expression})",
    )


def next_frame(page):
    page.evaluate("() => new Promise(requestAnimationFrame)")


READ = """view => {
  const ticks = (css) => [...view.querySelectorAll(css)].map((text) => [
    text.previousElementSibling.getAttribute("d"), text.textContent]);
  const slider = view.querySelector("input[type=range]");
  return {
    line: view.querySelector(".rlnb-plot .rlnb-line").getAttribute("d"),
    axes: [ticks(".rlnb-xtick"), ticks(".rlnb-ytick")],
    slider: [+slider.value, slider.getAttribute("aria-valuetext")],
    readout: view.querySelector(".rlnb-readouts").innerText,
    alt: view.querySelector("svg[role=img] > title").textContent,
  };
}"""


def check(view, eps, a=2):
    """The view shows `eps` in its curve, its words and its slider alike."""
    seen = view.evaluate(READ)
    numbers = re.findall(r"(-?[\d.]+),(-?[\d.]+)", seen["line"])
    points = np.array(numbers, dtype=float).T
    for k, ticks in enumerate(seen["axes"]):  # read off by the ticks
        at = [float(re.findall(r"-?[\d.]+", mark)[k]) for mark, _ in ticks]
        labels = [float(text.replace("−", "-")) for _, text in ticks]
        slope, start = np.polyfit(at, labels, 1)
        points[k] = slope * points[k] + start
        assert slope > 0 if k == 0 else slope < 0  # y grows upwards
    x, y = points
    np.testing.assert_allclose(x, W, atol=1e-3)
    np.testing.assert_allclose(y, clipped_surrogate(W, a, eps), atol=1e-2)
    if a > 0:  # flat from the kink on
        assert x[y > y.max() - 5e-3].min() == pytest.approx(1 + eps, abs=0.015)
    else:
        assert x[y > y.max() - 5e-3].max() == pytest.approx(1 - eps, abs=0.015)
    assert seen["slider"] == [pytest.approx(eps), f"{eps:.2f}"]
    assert seen["readout"] == f"ε = {eps:.2f}"
    assert f"1+ε marked at x = {1 + eps:.3g}" in seen["alt"]


def test_every_key_and_a_drag_draw_what_the_formula_says(views, run_notebook):
    page = run_notebook(views)
    view, twin = page.locator(".rlnb").nth(0), page.locator(".rlnb").nth(1)
    slider = view.get_by_role("slider", name="ε, clip range", exact=True)
    cell = f"{NOTEBOOK}.content.activeCellIndex"
    slider.focus()
    before = page.evaluate(cell)
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    for k in range(41):  # each is there in the very next frame
        next_frame(page)
        check(view, 0.02 * (k + 1))
        page.keyboard.press("ArrowRight")
    for key, eps in (("Home", 0.02), ("ArrowUp", 0.04), ("End", 0.82)):
        page.keyboard.press(key)
        next_frame(page)
        check(view, eps)
        check(twin, eps)  # two views of one model stay in step
    # JupyterLab took none of the keys
    assert page.evaluate(cell) == before
    assert page.evaluate("document.activeElement.type") == "range"
    # the kernel has the value, and can set it
    assert ask_kernel(page, "view.eps") == "0.82"
    assert ask_kernel(page, "setattr(view, 'eps', 0.3)") == "None"
    page.wait_for_function("document.querySelector('.rlnb input').value == .3")
    check(view, 0.3)

    drag_moves_the_picture_and_nothing_else(page, view)


def drag_moves_the_picture_and_nothing_else(page, view):
    slider = view.get_by_role("slider")
    page.evaluate(
        """() => {
          const view = document.querySelector(".rlnb");
          const cell = view.closest(".jp-Cell");
          window.drawn = new Set();
          window.heights = new Set();
          const look = () => {
            drawn.add(view.querySelector("[data-name=surrogate]")
              .getAttribute("d"));
            heights.add(cell.getBoundingClientRect().height);
            requestAnimationFrame(look);
          };
          look();
        }"""
    )
    ask_kernel(page, "seen.clear()")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, middle)
    page.mouse.down()
    for k in range(1, 61):
        page.mouse.move(box["x"] + 8 + k * box["width"] / 60, middle)
        next_frame(page)
    check(view, 0.82)
    # the kernel hears of it when the slider is let go
    assert ask_kernel(page, "view.eps, seen") == "0.3 []"
    page.mouse.up()
    check(view, 0.82)
    assert ask_kernel(page, "view.eps, seen") == "0.82 [0.82]"
    assert page.evaluate("drawn.size") >= 30
    assert page.evaluate("[...heights].length") == 1


def test_out_of_sight_and_back(views, run_notebook):
    page = run_notebook(views)
    view = page.locator(".rlnb").first
    # the mode in which JupyterLab takes cells out of view off the page
    page.evaluate(
        f"""() => {{
          const notebook = {NOTEBOOK}.content;
          const windowingMode = "full";
          notebook.notebookConfig = {{
            ...notebook.notebookConfig, windowingMode }};
          window.goTo = (cell) => {{
            notebook.activeCellIndex = cell;
            notebook.scrollToItem(cell, "start");
          }};
        }}"""
    )
    view.get_by_role("slider").press("End")
    page.evaluate("goTo(6)")
    expect(view).to_be_hidden()
    page.evaluate("goTo(1)")
    view.wait_for()
    check(view, 0.82)
    view.get_by_role("slider").press("ArrowLeft")
    next_frame(page)
    check(view, 0.8)
    # the page loaded anew, the kernel still there
    page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    page.reload()
    view.wait_for()
    check(view, 0.8)


def test_lists_and_texts_choose_too(views, run_notebook):
    page = run_notebook(views)
    view = page.locator(".rlnb").nth(2)
    w = view.get_by_role("slider", name="w", exact=True)
    w.press("End")
    for text in ("5", "1.4", "1", "0.9", "0.2"):
        assert w.get_attribute("aria-valuetext") == text
        w.press("ArrowLeft")
    view.get_by_role("slider", name="ε, clip range").press("ArrowRight")
    view.get_by_role("group", name="sign").get_by_label("A < 0").check()
    next_frame(page)
    check(view, 0.25, -2)
    assert "A < 0, w=0.2" in view.locator(".rlnb-says").inner_text()
    assert ask_kernel(page, "three.eps, three.w, three.sign") == ("0.25 0.2 A < 0")
    page.keyboard.press("ArrowUp")
    assert view.get_by_label("A > 0").is_checked()
    check(view, 0.25)


def test_asking_keeps_up_with_the_newest_position(views, run_notebook):
    page = run_notebook(views)
    view = page.locator(".rlnb").nth(3)
    says = view.locator(".rlnb-says p").first
    view.get_by_role("slider").focus()
    ask_kernel(page, "calls.clear()")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert view.get_attribute("aria-busy") == "true"
    page.wait_for_function(STANDS, arg=[view.element_handle(), "ε = 0.80"])
    calls = json.loads(ask_kernel(page, "calls"))
    assert (calls[0], calls[-1]) == (0.3, 0.8) and len(calls) < 6
    page.keyboard.press("ArrowRight")
    expect(says).to_have_text("KeyError: 'temperature'")
    # a picture that is not the sliders' own is pale
    assert view.get_attribute("aria-busy") == "true"
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(STANDS, arg=[view.element_handle(), "ε = 0.80"])
    assert says.inner_text().startswith("A > 0, w=1.4")


STANDS = """([view, text]) =>
  view.textContent.includes(text) && view.ariaBusy !== "true" """


def infinite_and_missing_numbers(page):
    view = page.locator(".rlnb").nth(4)
    plot = view.locator(".rlnb-plot")
    high, *bars = plot.evaluate(
        """plot => [+plot.getAttribute("height"),
          ...[...plot.querySelectorAll(".rlnb-bar")].map((bar) => {
            const at = (name) => +bar.getAttribute(name);
            return [at("y"), at("y") + at("height")]; })]"""
    )
    half, up, down, gone = bars
    assert half == pytest.approx([high / 4, high / 2])
    assert up[0] < -1e5 and up[1] == high / 2  # leaves the panel
    assert down[0] == high / 2 and down[1] > 1e5
    assert gone[0] > 1e5
    path = plot.locator(".rlnb-line").get_attribute("d")
    assert [part.count("L") for part in path.split("M")[1:]] == [1, 0]
    assert view.locator(".rlnb-dot").count() == 0
    edge, nowhere = plot.locator(".rlnb-label").all()
    assert edge.get_attribute("text-anchor") == "end"
    assert float(nowhere.get_attribute("x")) > 1e5


CONTRAST = """() => {
  const parts = (css) => css.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((c) => {
      const s = c / 255;
      return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const rgb = parts(getComputedStyle(node).backgroundColor);
      if (rgb.length === 3 || rgb[3] > 0.9) return light(rgb);
    }
    return 1;
  };
  const texts = ".rlnb :is(text, span, output, legend, p:first-child)";
  return [...document.querySelectorAll(texts)].map((node) => {
    const style = getComputedStyle(node);
    const color = node.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [light(parts(color)), behind(node)].sort();
    return (b + 0.05) / (a + 0.05);
  });
}"""


def test_odd_numbers_and_both_themes(views, run_notebook):
    page = run_notebook(views, theme="dark")
    infinite_and_missing_numbers(page)
    dark = page.evaluate(CONTRAST)
    page.evaluate(
        "jupyterapp.commands.execute("
        "'apputils:change-theme', { theme: 'JupyterLab Light' })"
    )
    page.wait_for_function("document.body.dataset.jpThemeLight === 'true'")
    light = page.evaluate(CONTRAST)
    assert len(dark) == len(light) > 60
    assert min(dark + light) > 4.5
