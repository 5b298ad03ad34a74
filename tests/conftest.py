"""What the tests share: slow tests, and lessons run in a real browser."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

# One thread a process: two workers on two cores are in each other's way
# otherwise, and sums keep the digits that tools/record.py recorded.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import pytest

ROOT = Path(__file__).parents[1]
CI = bool(os.environ.get("CI"))
CHROMES = [
    os.environ.get("CHROME", ""),
    "chromium",
    "google-chrome",
    "chromium-browser",
    "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
]


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run slow tests too")


def pytest_configure(config):
    # On a fresh machine matplotlib warns, in the first lesson that draws,
    # that it builds its font list. Build it before the workers start.
    if not hasattr(config, "workerinput"):
        import matplotlib.font_manager  # noqa: F401


def pytest_collection_modifyitems(config, items):
    skip = pytest.mark.skip(reason="slow: runs with --slow, or if CI is set")
    for item in items:
        if "page" in getattr(item, "fixturenames", []):
            item.add_marker("browser")
        if "slow" in item.keywords and not (CI or config.option.slow):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args):
    chrome = next(filter(None, map(shutil.which, CHROMES)), None)
    if chrome is None:
        reason = "no Chromium or Chrome found; CHROME=path names one"
        pytest.fail(reason) if CI else pytest.skip(reason)
    # Whatever is asked for beyond this machine is not even looked up.
    offline = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    return {**browser_type_launch_args, "executable_path": chrome, "args": [offline]}


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """The address of a JupyterLab that serves a copy of the lessons."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(
        ROOT / "notebooks",
        home / "notebooks",
        ignore=shutil.ignore_patterns(".ipynb_checkpoints"),
    )
    # No question about news over the pictures, and no look for updates.
    settings = home / "settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}'
    )
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    # Kernels choose TCP ports that another process may take before they do;
    # sockets in a folder of their own (a short path) have no such race.
    sockets = []
    if sys.platform == "linux":
        env["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp()
        sockets = ["--KernelManager.transport=ipc"]
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *("--expose-app-in-browser", f"--port={port}"),
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port_retries=0",
        "--IdentityProvider.token=token",
        f"--ServerApp.root_dir={home}",
        "--LabApp.extension_manager=readonly",
        *sockets,
    ]
    log_file = home / "lab.log"
    with log_file.open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{url}/api/status?token=token", timeout=5)
            break
        except OSError:
            assert server.poll() is None, log_file.read_text()
            time.sleep(0.25)
    yield url
    server.terminate()
    server.wait(20)
    if sockets:
        shutil.rmtree(env["JUPYTER_RUNTIME_DIR"], ignore_errors=True)


@pytest.fixture
def add_notebook(lab):
    """add_notebook(name, sources, below="") puts a notebook beside the lessons."""

    def add(name, sources, below=""):
        code = {"cell_type": "code", "execution_count": None, "outputs": []}
        cells = [{**code, "source": source} for source in sources]
        cells += [{"cell_type": "markdown", "source": below}] * bool(below)
        for k, cell in enumerate(cells):
            cell.update(id=f"cell-{k}", metadata={})
        kernelspec = {"name": "python3", "display_name": "Python 3"}
        notebook = {
            "cells": cells,
            "metadata": {"kernelspec": kernelspec},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        request = urllib.request.Request(
            f"{lab}/api/contents/notebooks/{name}.ipynb?token=token",
            json.dumps({"type": "notebook", "content": notebook}).encode(),
            method="PUT",
        )
        urllib.request.urlopen(request)
        return name

    return add


@pytest.fixture
def run_notebook(page, lab):
    """run_notebook(name, theme="light", width=1100, meanwhile=None) runs a lesson.

    name is the file's, without .ipynb; theme is "light" or "dark"; width is
    the window's, of which the lesson has nearly all; meanwhile(page) is called
    while the cells run. Returns the page once
    all is idle, every widget is there, and nothing went wrong: no error, no
    stderr, nothing in JupyterLab's log, no request beyond this machine
    (page.external). After the test the same is asked again.
    """
    page.external, page.errors = [], []

    def note(request):
        local = (lab, lab.replace("http", "ws"), "data:", "blob:")
        if not request.url.startswith(local):
            page.external.append(request.url)

    def note_error(message):
        if message.type == "error":
            page.errors.append(message.text)

    page.on("request", note)
    page.on("websocket", note)
    page.on("console", note_error)
    page.on("pageerror", lambda error: page.errors.append(str(error)))

    def run(name, theme="light", width=1100, meanwhile=None):
        page.set_viewport_size({"width": width, "height": 900})
        workspace = f"{lab}/lab/workspaces/{time.time_ns()}"
        page.goto(f"{workspace}/tree/notebooks/{name}.ipynb?token=token")
        page.wait_for_function(f"{NOTEBOOK}?.{KERNEL}?.status === 'idle'")
        # JupyterLab's own commands, which its menus call too: a menu may be
        # out of sight in a narrow window.
        page.evaluate("jupyterapp.shell.collapseLeft()")
        page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', { theme })",
            f"JupyterLab {theme.title()}",
        )
        page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light",
            arg="true" if theme == "light" else "false",
        )
        page.evaluate(
            "() => { jupyterapp.commands.execute('notebook:run-all-cells')"
            ".finally(() => { window.ranAll = true; }); }"
        )
        if meanwhile is not None:
            meanwhile(page)
        page.wait_for_function("window.ranAll", timeout=120_000)
        page.wait_for_function(f"{NOTEBOOK}.{KERNEL}.status === 'idle'")
        page.wait_for_function(
            "!document.body.textContent.includes('Loading widget...')"
        )
        assert_all_well(page)
        ran.append(name)
        return page

    ran = []
    yield run
    try:
        if ran:
            assert_all_well(page)
    finally:  # a kernel that failed here is not the next test's
        page.evaluate("window.jupyterapp?.serviceManager.sessions.shutdownAll()")


NOTEBOOK = "window.jupyterapp?.shell.currentWidget"
KERNEL = "sessionContext?.session?.kernel"


def assert_all_well(page):
    """Asks the notebook's model: it has the cells out of view as well."""
    cells = page.evaluate(f"{NOTEBOOK}.content.model.toJSON().cells")
    for cell in cells:
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error", (cell["id"], output)
            assert output.get("name") != "stderr", (cell["id"], output)
        assert cell.get("execution_count", 1), f"{cell['id']} did not run"
    log = page.locator(".jp-LogConsoleStatusItem")
    assert log.is_hidden() or log.inner_text() in ("", "0"), log.inner_text()
    assert page.get_by_text("Error displaying widget").count() == 0
    assert page.external == []
    assert page.errors == []
