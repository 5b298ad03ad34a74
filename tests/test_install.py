"""What a reader's first two commands rest on."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def read(name):
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-test.txt", "requirements-trl.txt"]
)
def test_pins_are_exact(name):
    lines = [line.partition("#")[0].strip() for line in read(name).split("\n")]
    pins = [line for line in lines if line and not line.startswith("-r ")]
    pin = re.compile(r"[A-Za-z0-9-]+==\d+(\.\d+)+")
    assert [line for line in pins if not pin.fullmatch(line)] == []


@pytest.mark.parametrize("name", ["README.md", ".ci/run"])
def test_make_targets_exist(name):
    targets = set(re.findall(r"(?m)(?:^|`)make ([a-z]+)", read(name)))
    known = set(re.findall(r"(?m)^([a-z]+):", read("Makefile")))
    assert targets
    assert targets <= known


def test_readme_lists_the_lessons():
    with_table = runpy.run_path(str(ROOT / "tools/links.py"))["with_table"]
    assert read("README.md") == with_table(read("README.md")), "make links"


def test_repository_stands_in_one_place():
    """Binder links aside, which `make links` writes into README.md."""
    project = tomllib.loads(read("pyproject.toml"))["project"]
    owner_and_name = "/".join(project["urls"]["Repository"].split("/")[-2:])
    texts = [*ROOT.glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    for folder in ("rlnb", "binder", ".ci", ".github"):
        texts += [p for p in (ROOT / folder).rglob("*") if p.is_file()]
    for path in texts:
        if path.suffix == ".pyc":
            continue
        text = path.read_text("utf-8")
        if path.name == "README.md":
            text = re.sub(r"(?s)<!-- lessons -->.*<!-- /", "", text)
        assert owner_and_name not in text, path
