"""A run under way in a real JupyterLab: its curves, its bar, its stop button."""

import re

import pytest
from conftest import KERNEL, NOTEBOOK
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
CELLS = [
    """
from rlnb.training import TrainConfig
from rlnb.training.live import watch
config = TrainConfig(warmup=0, updates=10**6, prompts=4, evaluate_every=20)
result = await watch(config)
""",
    """
print(result.stopped, result.updates, result.history.at[-1])
print([f"{x[-1]:.3f}" for x in (result.history.exact["trained"]["kl"],)])
""",
]


@pytest.mark.parametrize("by", ["button", "interrupt"])
def test_a_run_is_seen_and_stopped(add_notebook, run_notebook, by):
    """It ends in the middle of the cell, and what was learned is there."""
    seen = {}

    def meanwhile(page):
        said = page.locator(".widget-label").last
        expect(said).to_have_text(re.compile("s left$"), timeout=60_000)
        curve = page.locator(".rlnb-line[data-name=trained]").first
        seen["first"] = curve.get_attribute("d"), said.inner_text()
        expect(curve).not_to_have_attribute("d", seen["first"][0])
        expect(said).not_to_have_text(seen["first"][1])
        if by == "button":
            page.get_by_role("button", name="Stop, keep what was learned").click()
        else:
            page.evaluate(f"{NOTEBOOK}.{KERNEL}.interrupt()")

    page = run_notebook(add_notebook("live", CELLS), meanwhile=meanwhile)
    said = page.locator(".widget-label").last.inner_text()
    done = int(re.match(r"stopped after (\d+) updates", said)[1])
    out = page.locator(".jp-OutputArea-output pre").last.inner_text()
    stopped, updates, last, kl = re.match(
        r"(\w+) (\d+) (\d+)\s+\['([\d.]+)'\]", out
    ).groups()
    assert (stopped, int(updates), int(last)) == ("True", done, done)
    assert 0 < done < 10**6
    shown = page.locator(".rlnb-readouts").inner_text()
    assert f"KL, trained = {kl} nats" in shown
    assert page.locator(".rlnb-says p").first.inner_text().startswith(f"After {done} ")
    expect(page.get_by_role("button", name="Stop, keep")).to_be_disabled()
