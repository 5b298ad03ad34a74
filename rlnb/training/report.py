"""What a run leaves in its folder: report.json and curves.png."""

import io
import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version

import torch

from ..pictures import training_run as pictures
from ..show import draw
from . import processes
from .checkpoint import write


def report(result, folder):
    """Write report.json and curves.png of a TrainResult into a folder (a Path)."""
    exact = result.history.exact
    ends = {g: {m: v[-1] for m, v in each.items()} for g, each in exact.items()}
    content = {
        "settings": asdict(result.config),
        **_machine(result.config.threads),
        "updates": result.updates,
        "stopped": result.stopped,
        "seconds": round(result.seconds, 3),
        "end": ends,
        "checks": [check.plain() for check in result.checks],
        "digests": result.digests,
        "history": asdict(result.history),
    }
    picture = pictures.curves(result.history, max(result.updates, 1))
    _keep(folder, content, picture)


def report_sweep(result, folder):
    """The same of a SweepResult."""
    content = {
        "settings": asdict(result.config),
        **_machine(torch.get_num_threads()),
        "betas": result.betas,
        "seeds": result.seeds,
        "start": result.start,
        "end": {
            g: {m: v.tolist() for m, v in each.items()}
            for g, each in result.exact.items()
        },
    }
    _keep(folder, content, pictures.by_beta(result))


def _machine(threads):
    cuda = torch.cuda.is_available()
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("rlnb", "torch", "numpy")},
        },
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "kernels": torch.backends.cpu.get_cpu_capability(),
            "gpu": torch.cuda.get_device_name() if cuda else None,
            "cores": os.cpu_count(),
            "threads": threads,
            "processes": processes.count(),
        },
    }


def _keep(folder, content, picture):
    image = io.BytesIO()
    draw(picture).savefig(image, dpi=150)
    data = {
        "report.json": (json.dumps(content, indent=1) + "\n").encode(),
        "curves.png": image.getvalue(),
    }
    for name, whole in data.items():
        write(folder / name, whole)
