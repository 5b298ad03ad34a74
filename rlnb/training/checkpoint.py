"""Checkpoints: written whole or not at all, read without running anything."""

import hashlib
import io
import os
import pickle
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from ..inputs import refuse
from .config import differing
from .policy import digest

FORMAT = "rlnb.training 1"
NAME = "checkpoint.pt"
# A resumed run may go further, and elsewhere.
FREE = "updates", "device", "threads", "cuda_graph"
KEYS = (
    "done", "policy", "reference", "optimizer", "history", "digests", "first_ratio",
    "seconds",
)  # fmt: skip
SUM = 64  # hex digits of the sha256 at the end of the file


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
        seen = f"{str(folder)!r}, which holds a run"
        refuse("folder", seen, "another, or resume=True")
    return path


def write(path, data):
    """Write bytes to a file beside path, then put it in path's place.

    Whatever happens before the last step, path stays as it was.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def save(path, config, content):
    """Save a dict of numbers, texts, lists, dicts and tensors. OSError if it fails."""
    whole = io.BytesIO()
    torch.save({"format": FORMAT, "config": asdict(config), **content}, whole)
    whole.write(hashlib.sha256(whole.getvalue()).hexdigest().encode())
    write(path, whole.getvalue())


def load(path, config):
    """The content of a checkpoint made under the same settings; None without one.

    Refused with a ValueError: a file that is truncated, damaged or no
    checkpoint of ours, and one of other settings. Nothing in it is executed.
    """
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse(str(path), f"not to be read ({error.strerror})", "a file as written")
    content, total = whole[:-SUM], whole[-SUM:]
    if hashlib.sha256(content).hexdigest().encode() != total:
        seen = "not whole (its sha256 is another)"
        refuse(str(path), seen, "a checkpoint as written")
    try:
        content = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise KeyError("format")
        theirs = content["config"]
        other = differing(config, theirs, FREE)
        content = {key: content[key] for key in KEYS}
        if not fits(content):
            raise TypeError("parts")
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
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


def fits(content):
    """Do the parts that are plain numbers and texts fit together?"""
    done, history = content["done"], content["history"]
    return (
        type(done) is int and done > 0 and type(content["seconds"]) is float
        and set(history) == {"reward", "log_ratio", "at", "exact"}
        and len(history["reward"]) == len(history["log_ratio"]) == done
        and set(content["digests"]) == {"policy before", "reference before"}
    )  # fmt: skip


def put_back(path, content, policy, reference):
    """Fill both modules with what the checkpoint at `path` holds."""
    for name, module in (("policy", policy), ("reference", reference)):
        try:
            module.load_state_dict(content[name])
        except (RuntimeError, TypeError, AttributeError) as error:
            refuse(str(path), f"of another {name} ({_line(error)})", "the same network")
    size = (sum(x.numel() for x in policy.parameters()),)
    try:
        (state,) = content["optimizer"]["state"].values()
        shapes = [tuple(state[key].shape) for key in ("exp_avg", "exp_avg_sq")]
    except (KeyError, TypeError, ValueError, AttributeError):
        shapes = []
    if shapes != [size, size]:
        refuse(str(path), "with an optimizer of another kind", "that of the policy")
    if digest(reference) != content["digests"]["reference before"]:
        refuse(str(path), "with a reference that has changed", "the one it began with")


def _line(error):
    return str(error).split("\n")[0].split(". ")[0]
