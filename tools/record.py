"""Run lessons from the first cell to the last and store what they print.

    python tools/record.py [--check] [lesson.ipynb ...]

Recording twice gives the same bytes, but for the times that lesson 08 prints.
--check writes nothing and exits with 1 if anything would change. Without files:
all of notebooks/.
"""

import argparse
import os
import sys
import time
from pathlib import Path

# The last digits of a sum depend on how many threads share it.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LESSONS = Path(__file__).parents[1] / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


class Recorder(NotebookClient):
    """Keeps of a cell's output what nbval will compare with.

    nbval has no widgets, and sees neither a cleared nor an updated output;
    so these are left out here too, except in cells that it doesn't compare.
    """

    def handle_comm_msg(self, outs, msg, cell_index):
        pass

    def clear_output(self, outs, msg, cell_index):
        if self.is_free(cell_index):
            super().clear_output(outs, msg, cell_index)

    def process_message(self, msg, cell, cell_index):
        update = msg["msg_type"] == "update_display_data"
        if update and not self.is_free(cell_index):
            return None
        return super().process_message(msg, cell, cell_index)

    def is_free(self, cell_index):
        tags = self.nb.cells[cell_index].metadata.get("tags", [])
        return "nbval-ignore-output" in tags


class RecordingError(Exception):
    pass


# No such file, a dead kernel or a cell without end, and no notebook at all.
FAULTS = (RecordingError, OSError, RuntimeError, ValueError, KeyError)


def record(path):
    """The lesson at path, run, as the bytes of its file."""
    lesson = nbformat.v4.reads(path.read_text("utf-8"))
    for i, cell in enumerate(lesson.cells):
        if "id" not in cell:
            raise RecordingError(f"cell {i} has no id")
        tags = cell.metadata.get("tags")
        cell.metadata = {"tags": tags} if tags else {}
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = Recorder(
        lesson,
        kernel_name="python3",
        timeout=300,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        # The cell that raised is the last one that has outputs.
        cell = [c for c in lesson.cells if c.get("outputs")][-1]
        raise RecordingError(
            f"cell {cell.id} raises {error.ename}: {error.evalue}"
        ) from error
    lesson.metadata = METADATA
    for cell in lesson.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)
    lesson = nbformat.from_dict(lesson)
    nbformat.validate(lesson)
    return (nbformat.writes(lesson) + "\n").encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    failed = False
    for path in args.files or sorted(LESSONS.glob("*.ipynb")):
        start = time.perf_counter()
        try:
            before, after = path.read_bytes(), record(path)
        except FAULTS as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            failed = True
            continue
        changed = before != after
        if changed and not args.check:
            path.write_bytes(after)
        failed = failed or (changed and args.check)
        seconds = time.perf_counter() - start
        print(
            f"{path.name}  {seconds:.1f} s  {len(after):,} bytes  "
            f"{'changed' if changed else 'unchanged'}"
        )
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
