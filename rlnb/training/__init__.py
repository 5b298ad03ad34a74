"""A full training run, small enough that its end is known exactly."""

from .config import TrainConfig
from .evaluation import evaluate
from .policy import digest, freeze_reference
from .run import TrainResult, train
from .sweep import SweepResult, sweep
from .warmup import warm_up

__all__ = [
    "SweepResult",
    "TrainConfig",
    "TrainResult",
    "digest",
    "evaluate",
    "freeze_reference",
    "sweep",
    "train",
    "warm_up",
]
