"""The settings of a run, refused before any work if they are impossible."""

from dataclasses import dataclass, field, fields
from numbers import Integral

import torch

from ..inputs import number, refuse
from .task import NUMBERS

MOST_PROMPTS = NUMBERS**2 // 2  # the half that is trained on
DTYPES = {"float64": torch.float64, "float32": torch.float32}
DEVICES = "auto", "cpu", "cuda", "mps"
GRADIENTS = "sampled", "exact"


def _setting(default, text):
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one run. They decide its numbers, to the last digit shown.

    Refused with a ValueError: whatever cannot be run, before any work is done.
    """

    beta: float = _setting(0.1, "price of a nat of KL(p||q), in reward units")
    seed: int = _setting(0, "of the sampled prompts and answers")
    prompts: int = _setting(32, "how many different prompts are trained on")
    samples_per_prompt: int = _setting(8, "answers sampled for each drawn prompt")
    updates: int = _setting(300, "steps of Adam, one for each batch")
    batch: int = _setting(64, "prompts drawn for each update")
    learning_rate: float = _setting(1e-3, "of Adam")
    gradient: str = _setting("sampled", "sampled, or exact: all answers enumerated")
    warmup: int = _setting(250, "supervised steps before; the reference is their end")
    start_seed: int = _setting(0, "of split, initial weights and warm-up")
    evaluate_every: int = _setting(10, "updates between two exact evaluations")
    device: str = _setting("cpu", "auto, cpu, cuda or mps")
    dtype: str = _setting("float64", "float64 or float32")
    threads: int = _setting(1, "of a single run; its steps are too small to share")
    cuda_graph: bool = _setting(False, "replay the step as a CUDA graph")

    def __post_init__(self):
        for name, least, accept in (
            ("beta", ">= 0", lambda x: x >= 0),
            ("learning_rate", "> 0", lambda x: x > 0),
        ):
            allowed = f"a number {least}, below 1e30"
            value = number(name, getattr(self, name), allowed, accept)
            object.__setattr__(self, name, value)  # plain, as it is kept in files
        for name, low, high in (
            ("seed", 0, 2**32 - 1),
            ("start_seed", 0, 2**32 - 1),
            ("prompts", 1, MOST_PROMPTS),
            ("samples_per_prompt", 2, 10**6),
            ("updates", 1, 10**9),
            ("batch", 1, 10**6),
            ("warmup", 0, 10**9),
            ("evaluate_every", 1, 10**9),
            ("threads", 1, 1024),
        ):
            value = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not (whole and low <= value <= high):
                refuse(name, repr(value), f"a whole number from {low} to {high}")
            object.__setattr__(self, name, int(value))
        for name, allowed in (
            ("gradient", GRADIENTS),
            ("dtype", DTYPES),
            ("device", DEVICES),
        ):
            value = getattr(self, name)
            if not (isinstance(value, str) and value in allowed):
                refuse(name, repr(value), ", ".join(allowed))
        if not isinstance(self.cuda_graph, bool):
            refuse("cuda_graph", repr(self.cuda_graph), "True or False")
        if self.cuda_graph and self.torch_device.type != "cuda":
            refuse("cuda_graph", "True", f"False on device {self.device!r}")
        self.torch_device  # noqa: B018 - refuses a device that is not there

    @property
    def torch_dtype(self):
        return DTYPES[self.dtype]

    @property
    def torch_device(self):
        """The device of this process; "auto" takes the first that is there."""
        there = {
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available() and self.dtype == "float32",
            "cpu": True,
        }
        name = next(filter(there.get, there)) if self.device == "auto" else self.device
        if name == "mps" and self.dtype == "float64":
            refuse(
                "dtype", "'float64'", "'float32' on device 'mps', which has no other"
            )
        if not there[name]:
            have = ", ".join(repr(d) for d in there if there[d])
            refuse("device", repr(name), f"on this machine: {have}")
        return torch.device(name)


def differing(config, settings, free=()):
    """Names of the settings that a dict gives another value, but for `free`."""
    names = (f.name for f in fields(config) if f.name not in free)
    return [name for name in names if settings.get(name) != getattr(config, name)]
