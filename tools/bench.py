"""Measure what a reader waits for: one table from one run.

    python tools/bench.py [--quick] [--only sliders|training|lessons|imports]

sliders: `explore` and `interact` with matplotlib take turns with the same
picture in a real JupyterLab, direct and with 100 ms of network delay.
training: lesson 07's updates, fast and plain taking turns, one by one and 25 at
once, in one process and in two. lessons: each in a fresh kernel. imports: each
in a fresh process.
"""

import argparse
import asyncio
import copy
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
STEPS = 40  # eps from .02 to .82
RUN_ALL = "jupyterapp.commands.execute('notebook:run-all-cells')"

# The two throw-away notebooks: the same curves in the same two panels.
CURVES = """
import numpy as np
from rlnb.clipping import clipped_surrogate
W = np.linspace(0.01, 2, 200)
PANELS = (2, "blue", "#0072B2", (0, 4)), (-2, "orange", "#D55E00", (-4, 0))
"""
TOOLS = {
    "explore": """
from rlnb.show import Line, Mark, Panel, Picture, explore
def clip(eps=0.02):
    panels = []
    for A, color, _, ylim in PANELS:
        items = (Line("w A", W, W * A, "grey", "dash"),
                 Line("surrogate", W, clipped_surrogate(W, A, eps), color),
                 Mark("1−ε", x=1 - eps, side="left"), Mark("1+ε", x=1 + eps))
        panels.append(Panel(f"A = {A:+d}", items, (0, 2), ylim, "w"))
    return Picture("Clipping", panels, f"Flat beyond {eps:.2f}.")
explore(clip, eps=(0.02, 0.82, 0.02))
""",
    "interact": """
import matplotlib.pyplot as plt
from ipywidgets import interact
def clip(eps=0.02):
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.6))
    for ax, (A, _, color, ylim) in zip(axes, PANELS):
        ax.plot(W, W * A, "--", color="grey", label="w A")
        ax.plot(W, clipped_surrogate(W, A, eps), color=color, label="surrogate")
        ax.axvline(1 - eps, ls=":", color="k")
        ax.axvline(1 + eps, ls=":", color="k")
        ax.set(xlim=(0, 2), ylim=ylim, xlabel="w", title=f"A = {A:+d}")
        ax.legend()
    plt.show()
interact(clip, eps=(0.02, 0.82, 0.02));
""",
}
# In the page: when each key or move of the mouse came in, and when another
# picture stood in an animation frame for the first time.
WATCH = """() => {
  const output = document.querySelector(".jp-OutputArea");
  const all = (css) => [...output.querySelectorAll(css)];
  const look = () => all(".rlnb path, .rlnb svg text")
    .map((node) => node.getAttribute("d") ?? node.textContent).join() ||
    all("img").filter((i) => i.complete && i.naturalWidth).map((i) => i.src).join();
  const seen = (window.seen = { inputs: [], frames: [], late: 0 });
  let last = look();
  let before = performance.now();
  for (const kind of ["keydown", "pointermove", "pointerup"])
    addEventListener(kind, (event) => seen.inputs.push(event.timeStamp), true);
  const tick = () => {
    const now = look();
    const time = performance.now();
    if (time - before > 1000 / 30) seen.late++;
    before = time;
    if (now && now !== last) { seen.frames.push(time); last = now; }
    requestAnimationFrame(tick);
  };
  tick();
}"""


def sliders(rounds, delays):
    """Key press to picture: `explore` and `interact`, taking turns."""
    found = {(tool, delay): [] for delay in delays for tool in TOOLS}
    names = "chromium", "google-chrome", "chromium-browser"
    chrome = [os.environ.get("CHROME"), *map(shutil.which, names)]
    with jupyterlab() as port, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=next(filter(None, chrome)))
        ports = {d: delayed(port, d) if d else port for d in delays}
        for k in range(rounds):
            for (tool, delay), results in found.items():
                say(f"round {k + 1}, {tool}, {delay} ms")
                url = f"http://127.0.0.1:{ports[delay]}/lab/tree/{tool}.ipynb"
                results.append(slider_round(browser, url, delay))
                for session in ask(port, "sessions"):
                    ask(port, f"sessions/{session['id']}", "DELETE")
        browser.close()
    middle, table = {}, ["slider    delay  median ms  p95 ms  drawn  drag"]
    for (tool, delay), results in found.items():
        ms = [wait for waits, _, _ in results for wait in waits]
        middle[tool, delay] = statistics.median(ms)
        p95 = statistics.quantiles(ms, n=20)[-1]
        drawn = " ".join(
            f"{n} ({late} late)" if late else f"{n}" for _, (n, late), _ in results
        )
        drag = ", ".join(f"{n} +{after:.0f} ms" for _, _, (n, after) in results)
        numbers = f"{delay:6}{middle[tool, delay]:11.1f}{p95:8.1f}"
        table.append(f"{tool:9}{numbers}  {drawn}  {drag}")
    table.append(
        "drawn: pictures from 40 keys at 30 a second, each round (late: frames of\n"
        "the browser longer than a key, two of which may share one); drag: pictures\n"
        "in a mouse drag of one second, and from letting go to the last of them"
    )
    what = "interact / explore, key press to picture"
    ratios = (middle["interact", d] / middle["explore", d] for d in delays)
    return [
        f"{ratio:6.1f}  {what}, {delay} ms of network delay"
        for ratio, delay in zip(ratios, delays, strict=True)
    ], table


def slider_round(browser, url, delay):
    """The notebook opened and run, its slider moved by keys, then by mouse."""
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    page.goto(f"{url}?token=bench&reset")
    idle = page.locator("#jp-main-statusbar").get_by_text("| Idle")
    idle.wait_for(timeout=90_000)
    page.evaluate(f"() => {{ {RUN_ALL}; }}")
    output = page.locator(".jp-OutputArea")
    slider = output.locator("input[type=range], .noUi-handle").first
    slider.wait_for(timeout=60_000)
    output.locator("svg[role=img], img").first.wait_for()
    time.sleep(2 + delay / 100)
    page.evaluate(WATCH)
    slider.focus()
    waits = key_by_key(page, delay)
    drawn = at_30_hz(page, delay)
    track = output.locator("input[type=range], .noUi-base").first
    drag = mouse_drag(page, slider.bounding_box(), track.bounding_box(), delay)
    page.close()
    return waits, drawn, drag


def key_by_key(page, delay):
    """ms from each key press to the first frame with another picture."""
    waits = []
    for _ in range(STEPS):
        forget(page)
        page.keyboard.press("ArrowRight")
        page.wait_for_function("seen.frames.length", timeout=20_000)
        inputs, frames = settled(page, 0.1 + 2 * delay / 1000)
        waits.append(frames[0] - inputs[0])
    return waits


def at_30_hz(page, delay):
    """(pictures from 40 keys at 30 a second, frames in which two had to share)."""
    forget(page)
    for _ in range(STEPS):
        start = time.perf_counter()
        page.keyboard.down("ArrowLeft")
        # never two in one frame of the screen, when the key came in late
        due = max(start + 1 / 30, time.perf_counter() + 1 / 40)
        time.sleep(due - time.perf_counter())
    page.keyboard.up("ArrowLeft")
    late = page.evaluate("seen.late")
    return len(settled(page, 1 + 2 * delay / 1000)[1]), late


def mouse_drag(page, knob, track, delay):
    """(pictures in a drag of a second, ms from letting go to the last one)."""
    y = track["y"] + track["height"] / 2
    native = knob["width"] == track["width"]
    start = track["x"] + 8 if native else knob["x"] + knob["width"] / 2
    page.mouse.move(start, y)
    page.mouse.down()
    forget(page)
    due = time.perf_counter()
    for k in range(1, 61):
        page.mouse.move(start + (track["x"] + track["width"] - start) * k / 60, y)
        due += 1 / 60
        time.sleep(max(0, due - time.perf_counter()))
    page.mouse.up()
    inputs, frames = settled(page, 1 + 2 * delay / 1000)
    return len(frames), max(0, frames[-1] - inputs[-1])


def forget(page):
    page.evaluate("() => { seen.inputs = []; seen.frames = []; seen.late = 0; }")


def settled(page, quiet):
    """(inputs, frames) once the picture has stood still for `quiet` seconds."""
    count, since = -1, time.perf_counter()
    while time.perf_counter() - since < quiet:
        inputs, frames = page.evaluate("[seen.inputs, seen.frames]")
        if len(frames) != count:
            count, since = len(frames), time.perf_counter()
        time.sleep(0.02)
    return inputs, frames


@contextmanager
def jupyterlab():
    """A JupyterLab that serves the two notebooks; gives its port."""
    home = tempfile.TemporaryDirectory()
    for name, source in TOOLS.items():
        cell = nbformat.v4.new_code_cell(CURVES + source)
        kernel = {"name": "python3", "display_name": "Python 3"}
        notebook = nbformat.v4.new_notebook(cells=[cell])
        notebook.metadata.kernelspec = kernel
        nbformat.write(notebook, f"{home.name}/{name}.ipynb")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    names = "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"
    own = {name: f"{home.name}/{name}" for name in names}
    command = f"""-m jupyterlab --no-browser --allow-root --port={port}
        --expose-app-in-browser --ServerApp.ip=127.0.0.1 --LabApp.news_url=
        --IdentityProvider.token=bench --ServerApp.root_dir={home.name}"""
    server = subprocess.Popen(
        [sys.executable, *command.split()],
        env={**os.environ, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with home:
        for _ in range(240):
            with suppress(OSError):
                ask(port, "status")
                break
            time.sleep(0.25)
        try:
            yield port
        finally:
            server.terminate()
            server.wait(20)


def ask(port, what, method="GET"):
    url = f"http://127.0.0.1:{port}/api/{what}?token=bench"
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read() or "null")


def delayed(port, delay):
    """A port that leads to `port` with `delay` ms more for a round trip."""
    loop, lag = asyncio.new_event_loop(), delay / 2000

    async def pump(reader, writer):
        while data := await reader.read(65536):
            loop.call_later(lag, writer.write, data)
        loop.call_later(lag, writer.close)

    async def connect(reader, writer):
        there = await asyncio.open_connection("127.0.0.1", port)
        pumps = pump(reader, there[1]), pump(there[0], writer)
        await asyncio.gather(*pumps, return_exceptions=True)

    starting = asyncio.start_server(connect, "127.0.0.1", 0)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    return server.sockets[0].getsockname()[1]


def training(rounds):
    """Updates a second: each way to make lesson 07's updates, taking turns."""
    import torch

    from rlnb.training import (
        TrainConfig,
        evaluate,
        freeze_reference,
        plain,
        sweep,
        train,
        warm_up,
    )
    from rlnb.training.loop import Updater
    from rlnb.training.task import addition

    config, task = TrainConfig(evaluate_every=300), addition()
    known = [x[task.train[: config.prompts]] for x in (task.prompts, task.answers)]
    start = warm_up(config)
    reference = freeze_reference(start)

    def fast(policy):
        updater = Updater(policy, reference, *known, config)
        for k in range(config.updates):
            updater.update(k)

    def plainly(policy):
        for _ in plain.train_plainly(policy, reference, *known, config):
            pass

    betas, seeds = [0, 0.03, 0.1, 0.3, 1], range(5)
    ways = {
        "plain": (config.updates, lambda: plainly(copy.deepcopy(start))),
        "fast": (config.updates, lambda: fast(copy.deepcopy(start))),
        "run": (config.updates, lambda: train(config, start=start)),
        "sweep": (
            25 * config.updates,
            lambda: sweep(config, betas, seeds, start=start),
        ),
    }
    if torch.cuda.is_available():
        on = replace(config, device="cuda")
        ways["cuda"] = (config.updates, lambda: train(on, start=start))
        graph = replace(on, cuda_graph=True)
        ways["cuda graph"] = (config.updates, lambda: train(graph, start=start))
    pace, ms = {way: [] for way in ways}, []
    for k in range(rounds):
        for way, (updates, work) in ways.items():
            say(f"round {k + 1}, {way}")
            begun = time.perf_counter()
            work()
            pace[way].append(updates / (time.perf_counter() - begun))
        for _ in range(5):
            begun = time.perf_counter()
            evaluate(start, reference, task.prompts, task.answers)
            ms.append(1000 * (time.perf_counter() - begun))
    for way, processes in (("one process", 1), ("two processes", 2)):
        say(way)
        pace[way] = [in_processes(processes, config)]
    middle = {way: statistics.median(found) for way, found in pace.items()}
    table = [f"updates/s, {torch.get_num_threads()} threads   median of {rounds}"]
    table += [f"{way:16}{middle[way]:10.0f}" for way in middle]
    table += [f"exact evaluation of 2,500 prompts: {statistics.median(ms):.0f} ms"]
    table.append(
        "fast: the loop alone; run: train() with two exact evaluations and all checks;\n"
        "sweep: 25 runs with their evaluations, as updates of one; processes: torchrun,\n"
        "one thread each, start of the processes not counted"
    )
    pairs = [("fast", "plain"), ("sweep", "fast"), ("two processes", "one process")]
    if "cuda" in middle:
        pairs += [("cuda", "run"), ("cuda graph", "cuda")]
    else:
        table += ["no GPU here, so none is compared"]
    ratios = [f"{middle[a] / middle[b]:6.2f}  {a} / {b}, updates/s" for a, b in pairs]
    return ratios, table


def in_processes(count, config):
    """Updates a second that a run by torchrun reports."""
    with tempfile.TemporaryDirectory() as folder:
        command = f"""-m torch.distributed.run --standalone --nproc-per-node {count}
            -m rlnb.training --folder {folder} --evaluate-every {config.updates}"""
        subprocess.run(
            [sys.executable, *command.split()],
            check=True,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        report = json.loads(Path(folder, "report.json").read_text())
    return report["updates"] / report["seconds"]


def lessons():
    """From no kernel to the last output, and the kernel's peak memory."""
    table = ["lesson, cold                 s  peak MB"]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        say(path.stem)
        lesson = nbformat.read(path, as_version=4)
        peak = "import resource as r; r.getrusage(r.RUSAGE_SELF).ru_maxrss"
        lesson.cells.append(nbformat.v4.new_code_cell(peak))
        where = {"metadata": {"path": path.parent}}
        client = NotebookClient(
            lesson, timeout=600, resources=where, extra_arguments=["--log-level=ERROR"]
        )
        start = time.perf_counter()
        client.execute()
        seconds = time.perf_counter() - start
        unit = 2**20 if sys.platform == "darwin" else 2**10
        peak = int(lesson.cells[-1].outputs[-1].data["text/plain"]) / unit
        table.append(f"{path.stem:24}{seconds:6.1f}{peak:9.0f}")
    return [], table


def imports():
    """What an import costs in a fresh process."""
    pairs = ("rlnb.kl", "numpy"), ("rlnb.show", "matplotlib.pyplot")
    ms = {module: [] for pair in pairs for module in pair}
    for module in [*ms] * 5:
        code = f"""if 1:
            import time
            start = time.perf_counter()
            import {module}
            print(1000 * (time.perf_counter() - start))"""
        out = subprocess.check_output([sys.executable, "-c", code])
        ms[module].append(float(out))
    middle = {module: statistics.median(ms[module]) for module in ms}
    table = ["import, median of 5     ms"]
    table += [f"{module:20}{middle[module]:6.0f}" for module in ms]
    ratios = [f"{middle[a] / middle[b]:6.1f}  {a} / {b}, import" for a, b in pairs]
    return ratios, table


def say(what):
    print(what, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    quick = "one round, no network delay"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--only", choices=["sliders", "training", "lessons", "imports"])
    args = parser.parse_args()
    rounds, delays = (1, [0]) if args.quick else (3, [0, 100])
    measures = {
        "sliders": lambda: sliders(rounds, delays),
        "training": lambda: training(rounds),
        "imports": imports,
        "lessons": lessons,
    }
    wanted = [args.only] if args.only else reversed(measures)
    found = {name: measures[name]() for name in wanted}
    ratios, tables = zip(*reversed(found.values()), strict=True)
    print(
        f"{date.today()}, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, {platform.system()}\n"
    )
    print(*(line for lines in ratios for line in lines), sep="\n")
    for table in tables:
        print("", *table, sep="\n")
    print(
        "\nNot in these figures: a slow screen, files the disk has not cached, "
        "a network\nthat is narrow or loses data, whatever else runs here."
    )


if __name__ == "__main__":
    main()
