"""A real trainer beside the formulas: what TRL had in its hands, and its log.

version.py says which TRL is needed, tiny.py makes a small model and trainer,
bridge.py keeps the tensors of each step, formulas.py recomputes what was logged.
"""

from .bridge import Generation, Step, joined, keep
from .formulas import differences, grpo_step, rloo_step, settings
from .tiny import EOS, exact, load, start, strict, supervise, tiny_model, tiny_trainer
from .version import quiet, requires_trl

__all__ = [
    "EOS", "Generation", "Step", "differences", "exact", "grpo_step", "joined", "keep",
    "load", "quiet", "requires_trl", "rloo_step", "settings", "start", "strict",
    "supervise", "tiny_model", "tiny_trainer",
]  # fmt: skip
