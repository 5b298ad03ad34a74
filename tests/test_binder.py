"""What mybinder.org will build, as far as it can be known without Docker."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dockerfile():
    if sys.platform == "win32":
        pytest.skip("repo2docker does not run on Windows")
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug"]
    command += ["--user-id", "1000", "--user-name", "reader", "."]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return run.stdout + run.stderr


def test_python(dockerfile):
    assert "conda environment for python=3.12" in dockerfile


def test_installs_after_the_files_are_there(dockerfile):
    """-e . needs them; a file with no local line is installed before."""
    copied = dockerfile.index("src/ ${REPO_DIR}/")
    installed = dockerfile.index('pip install --no-cache-dir -r "binder/req')
    assert copied < installed


def test_jupyterlab_of_the_one_list_of_pins():
    lines = (ROOT / "binder/requirements.txt").read_text().splitlines()
    assert "-r ../requirements.txt" in lines
    assert "\njupyterlab==" in (ROOT / "requirements.txt").read_text()
    assert not any("==" in line for line in lines)


def test_reader_is_not_root(dockerfile):
    users = re.findall(r"(?m)^USER (.+)", dockerfile)
    assert users[-1] == "${NB_USER}"


@pytest.mark.slow
def test_installs_and_imports(tmp_path):
    for name in ("binder", "rlnb"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for name in ("requirements.txt", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "venv/bin/python"
    if sys.platform == "win32":
        python = tmp_path / "venv/Scripts/python.exe"
    leave_out_index_out_of_reach(tmp_path / "binder/requirements.txt")
    env = {**os.environ, "PIP_NO_COMPILE": "1"}
    env.pop("PYTHONPATH", None)
    install = "-m pip install --quiet -r binder/requirements.txt"
    for command in (
        [sys.executable, "-m", "venv", "venv"],
        [python, *install.split()],
        [python, "-c", "import rlnb.kl, rlnb.show, torch"],
        [python, "-m", "jupyterlab", "--version"],
    ):
        subprocess.run(command, cwd=tmp_path, env=env, check=True)


def leave_out_index_out_of_reach(requirements):
    """pip would wait for it once a package, for minutes in all."""
    text = requirements.read_text()
    found = re.search(r"(?m)^--extra-index-url (\S+)\n", text)
    try:
        urllib.request.urlopen(f"{found[1]}/torch/", timeout=5).close()
    except OSError:
        requirements.write_text(text.replace(found[0], ""))
