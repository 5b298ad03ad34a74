"""`train` in a notebook: a bar with the time left, live curves, a stop button."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import ipywidgets as widgets
from IPython.display import display

from ..pictures import training_run as pictures
from ..show import Live
from .run import History, train


class _View(widgets.VBox):
    """The widgets in a column; in words where there are no widgets."""

    def _repr_mimebundle_(self, **kwargs):
        data = super()._repr_mimebundle_(**kwargs) or {}
        words = "A progress bar, live curves and a stop button; they need a kernel."
        return {**data, "text/plain": words}


async def watch(config, **options):
    """train(config, **options), shown while it runs: await its TrainResult.

    The run has a thread of its own, so the kernel can listen while the cell
    waits. The stop button, or an interrupted kernel, ends the run after the
    update it is at, and what was learned is returned.
    """
    stop, loop = threading.Event(), asyncio.get_running_loop()
    button = widgets.Button(description="Stop, keep what was learned", icon="stop")
    button.layout.width = "auto"
    bar = widgets.IntProgress(max=config.updates, description="updates")
    said = widgets.Label("warming up")
    curves = Live(pictures.curves(History(), config.updates))
    row = widgets.HBox([bar, said, button], layout={"flex_flow": "row wrap"})
    display(_View([row, curves]))

    def ask(*_):
        stop.set()
        said.value = "stopping"

    def show(done, left, picture):
        bar.value = done
        if not stop.is_set():
            said.value = f"{done} of {config.updates}, {left:.0f} s left"
        curves.show(picture)

    def tell(progress):  # drawn in the run's thread, before its lists grow on
        picture = pictures.curves(progress.history, config.updates)
        now = progress.done, progress.seconds_left, picture
        loop.call_soon_threadsafe(show, *now)

    button.on_click(ask)
    work = partial(train, config, watch=tell, stop=stop, **options)
    try:
        # a thread that ends with the run: torch's helpers go with it, where an
        # idle thread's would slow down all that follows
        with ThreadPoolExecutor(1) as thread:
            running = loop.run_in_executor(thread, work)
            result = await _to_the_end(running, ask)
    except Exception as error:
        said.value = f"ended by {type(error).__name__}"
        raise
    finally:
        button.disabled = True
    verb = "stopped" if result.stopped else "done"
    said.value = f"{verb} after {result.updates} updates, {result.seconds:.1f} s"
    bar.value = result.updates
    curves.show(pictures.curves(result.history, config.updates))
    return result


async def _to_the_end(running, ask):
    """The outcome of `running`; an interrupt only asks it to stop."""
    while True:
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            ask()
