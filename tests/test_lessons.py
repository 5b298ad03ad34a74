"""The gate: what nbval lets through is refused here.

nbval compares no picture, no alt text, and no cell that was never run. Two
tests at the end show, on copies, that a changed digit in an output and a
changed sign in a formula both fail.
"""

import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}
MIMES = {"text/plain", "text/html", "text/latex", "text/markdown", "image/png"}
# /a/b and C:\a, but not https://a/b, a/b/c or </b>
MACHINE_PATH = re.compile(r"(?<![\w.:/<~)}\]$])/[a-z][\w.-]*/[\w.-]|\b[A-Z]:\\")


@pytest.fixture(params=LESSONS, ids=lambda path: path.stem)
def lesson(request):
    return Lesson(request.param)


class Lesson:
    def __init__(self, path):
        self.path = path
        self.notebook = nbformat.read(path, as_version=4)
        self.cells = self.notebook.cells
        self.metadata = self.notebook.metadata
        self.code = [c for c in self.cells if c.cell_type == "code"]
        self.prose = [c for c in self.cells if c.cell_type == "markdown"]


def outputs(lesson):
    return [(c.id, output) for c in lesson.code for output in c.outputs]


def pictures(lesson):
    return [
        (cell, output)
        for cell, output in outputs(lesson)
        if "image/png" in output.get("data", {})
    ]


def headings(lesson):
    """The (level, text) of each heading, comments in code fences left out."""
    prose = "\n".join(c.source for c in lesson.prose)
    prose = re.sub(r"(?ms)^```.*?^```", "", prose)
    return re.findall(r"(?m)^(#{1,6}) +(.+?) *$", prose)


def test_there_are_lessons():
    assert len(LESSONS) >= 3


# How long a lesson and a cell may be


def test_title(lesson):
    titles = [text for level, text in headings(lesson) if level == "#"]
    assert len(titles) == 1
    assert lesson.cells[0].source.startswith("# ")


def test_number_of_cells(lesson):
    least = 20 if lesson.path.stem.startswith("00") else 40
    assert least <= len(lesson.cells) <= 70


def test_cells_are_short(lesson):
    lengths = {c.id: len(c.source.splitlines()) for c in lesson.code}
    assert {i: n for i, n in lengths.items() if n > 20} == {}
    assert statistics.median(lengths.values()) <= 5
    lines = [line for c in lesson.code for line in c.source.splitlines()]
    assert [line for line in lines if len(line) > 79] == []


def test_number_of_pictures(lesson):
    least, most = (1, 4) if lesson.path.stem.startswith("00") else (4, 8)
    assert least <= len(pictures(lesson)) <= most
    interactive = [c.id for c in lesson.code if "explore(" in c.source]
    assert len(interactive) <= 4


# The file


def test_cell_ids(lesson):
    ids = [c.id for c in lesson.cells]
    pattern = re.compile(lesson.path.stem[:2] + r"(-[a-z0-9]+)+")
    assert [i for i in ids if not pattern.fullmatch(i)] == []
    assert len(ids) == len(set(ids))


def test_metadata(lesson):
    nbformat.validate(lesson.notebook)
    assert lesson.metadata == METADATA
    for cell in lesson.cells:
        assert set(cell.metadata) <= {"tags"}, cell.id
        tags = set(cell.metadata.get("tags", []))
        assert tags <= {"nbval-ignore-output"}, cell.id
        assert "attachments" not in cell, cell.id
    for cell, output in outputs(lesson):
        metadata = output.get("metadata", {})
        assert set(metadata) <= {"image/png"}, cell
        keys = set(metadata.get("image/png", {}))
        assert keys <= {"alt", "width", "height"}, cell


def test_no_path_of_a_machine(lesson):
    for cell in lesson.cells:
        texts = [cell.source]
        for output in cell.get("outputs", []):
            texts.append(output.get("text", ""))
            data = output.get("data", {})
            texts += [data[k] for k in data if k.startswith("text/")]
        for text in texts:
            found = MACHINE_PATH.search(text)
            assert not found, (cell.id, text[found.start() :][:60])


# Code and outputs


def test_recorded_from_first_to_last(lesson):
    counts = [c.execution_count for c in lesson.code]
    assert counts == list(range(1, len(counts) + 1)), "run make record"
    assert outputs(lesson)


def test_plain_python(lesson):
    """No magic, no shell, no NBVAL comment, and no ; to hide a value."""
    odd = re.compile(r"(?m)^\s*[%!]|;\s*$|^\s*#\s*NBVAL")
    assert [c.id for c in lesson.code if odd.search(c.source)] == []


def test_outputs(lesson):
    for cell, output in outputs(lesson):
        assert output.output_type != "error", cell
        assert output.get("name") != "stderr", cell
        data = output.get("data", {})
        assert set(data) <= MIMES, cell
        assert "<script" not in data.get("text/html", "").lower(), cell


def test_pictures_say_what_they_show(lesson):
    for cell, output in pictures(lesson):
        alt = output.metadata.get("image/png", {}).get("alt", "")
        for text in (alt, output.data.get("text/plain", "")):
            # A sentence: a few words, and no <Figure size ...>
            assert len(text.split()) >= 4 and text[0] != "<", cell


# Links


def links(cell):
    prose = re.sub(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", "", cell.source)
    found = re.findall(r"\]\(<?([^)\s>]+)", prose)
    found += re.findall(r"(?m)^\[[^\]]+\]:\s*(\S+)", prose)
    return found + re.findall(r"""(?:href|src)=["']([^"']+)""", prose)


def anchors(path):
    """JupyterLab's names of headings: the text, with - for each space."""
    plain = [re.sub(r"[*_`]", "", text) for _, text in headings(Lesson(path))]
    return [text.replace(" ", "-") for text in plain]


def test_links_lead_somewhere(lesson):
    for cell in lesson.prose:
        for link in links(cell):
            if re.match(r"https?:|mailto:", link):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = (lesson.path.parent / file) if file else lesson.path
            assert target.exists(), (cell.id, link)
            assert ROOT in target.resolve().parents, (cell.id, link)
            if anchor and target.suffix == ".ipynb":
                assert anchor in anchors(target), (cell.id, link)


# Do the tests fail when they should?


@pytest.fixture
def copy(tmp_path):
    """A copy of lesson 06 and what it needs, with the same pytest options."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rlnb", tmp_path / "rlnb", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / LESSON_06, tmp_path / "notebooks")
    return tmp_path


LESSON_06 = "notebooks/06_clip_branches.ipynb"


def passes(folder, monkeypatch):
    """Does lesson 06 pass there, on the copy's rlnb?"""
    monkeypatch.setenv("PYTHONPATH", str(folder))
    command = [sys.executable, "-m", "pytest", "-n", "0", LESSON_06]
    run = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.returncode == 0


def test_a_clean_copy_passes(copy, monkeypatch):
    assert passes(copy, monkeypatch)


def test_a_changed_digit_fails(copy, monkeypatch):
    lesson = Lesson(copy / LESSON_06)
    texts = [(o, "text") for _, o in outputs(lesson) if "text" in o]
    texts += [(o.data, "text/plain") for _, o in outputs(lesson) if "data" in o]
    holder, key = next(t for t in texts if re.search(r"\d", t[0][t[1]]))
    holder[key] = re.sub(
        r"\d", lambda d: str((int(d[0]) + 1) % 10), holder[key], count=1
    )
    nbformat.write(lesson.notebook, copy / LESSON_06)
    assert not passes(copy, monkeypatch)


def test_a_changed_sign_fails(copy, monkeypatch):
    formula = copy / "rlnb/clipping.py"
    before = formula.read_text("utf-8")
    after = before.replace("1 - eps, 1 + eps", "1 - eps, 1 - eps")
    assert after != before
    formula.write_text(after, "utf-8")
    assert not passes(copy, monkeypatch)


def test_recording_twice_gives_the_same_bytes(copy):
    command = [sys.executable, ROOT / "tools/record.py", copy / LESSON_06]
    subprocess.run(command, check=True)
    first = (copy / LESSON_06).read_bytes()
    subprocess.run(command, check=True)
    assert (copy / LESSON_06).read_bytes() == first
