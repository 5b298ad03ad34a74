"""Checkpoints: written whole or not at all, read without running anything."""

import os
import pickle
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from ..inputs import refuse
from .config import differing
from .policy import digest

FORMAT = "rlnb.training 1"
NAME = "checkpoint.pt"
# A resumed run may go further, on another device.
FREE = "updates", "device", "cuda_graph"
KEYS = (
    "done", "policy", "reference", "optimizer", "history", "digests", "first_ratio",
    "seconds",
)  # fmt: skip
DAMAGES = zipfile.BadZipFile, pickle.UnpicklingError


def place(folder, resume):
    """The checkpoint's path in `folder`, made if missing; refused if unusable.

    A checkpoint that is there already is refused unless the run resumes it.
    """
    path = Path(folder) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        refuse("folder", repr(str(folder)), f"a folder to write in ({error.strerror})")
    if path.exists() and not resume:
        refuse(
            "folder", f"{str(folder)!r}, which holds a run", "another, or resume=True"
        )
    return path


def write(path, save):
    """Let `save(file)` fill a file beside path, then put it in path's place.

    Whatever happens before the last step, path stays as it was.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            save(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def save(path, config, content):
    """Save a dict of numbers, texts, lists, dicts and tensors. OSError if it fails."""
    whole = {"format": FORMAT, "config": asdict(config), **content}
    try:
        write(path, lambda file: torch.save(whole, file))
    except RuntimeError as error:  # torch's writer, when the disk is full
        raise OSError(f"{path}: {error}") from error


def load(path, config):
    """The content of a checkpoint made under the same settings; None without one.

    Refused with a ValueError: a file that is truncated, damaged or no
    checkpoint of ours, and one of other settings. Nothing in it is executed.
    """
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch reads without looking at sums
        if damaged:
            raise zipfile.BadZipFile(f"{damaged} is damaged")
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise KeyError("format")
        theirs = content["config"]
        other = differing(config, theirs, FREE)
        content = {key: content[key] for key in KEYS}
    except (*DAMAGES, RuntimeError, EOFError) as error:
        refuse(str(path), f"not whole ({_line(error)})", "a checkpoint as written")
    except (KeyError, TypeError, AttributeError, IndexError):
        refuse(str(path), "a file of another kind", f"a checkpoint, {FORMAT!r}")
    if other:
        name = other[0]
        seen = f"made with {name}={theirs.get(name)!r}"
        refuse(str(path), seen, f"{name}={getattr(config, name)!r}, as asked for")
    if content["done"] > config.updates:
        refuse("updates", config.updates, f"at least {content['done']}, already done")
    return content


def put_back(path, content, policy, reference):
    """Fill both modules with what the checkpoint at `path` holds."""
    for name, module in (("policy", policy), ("reference", reference)):
        try:
            module.load_state_dict(content[name])
        except (RuntimeError, TypeError, AttributeError) as error:
            refuse(str(path), f"of another {name} ({_line(error)})", "the same network")
    if digest(reference) != content["digests"]["reference before"]:
        refuse(str(path), "with a reference that has changed", "the one it began with")


def _line(error):
    return str(error).split("\n")[0].split(". ")[0]
