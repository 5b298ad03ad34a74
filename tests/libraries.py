"""The arrays that every formula is tried with, and how they are compared."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

quick = settings(max_examples=60, deadline=None, database=None)


class Library:
    """Makes arrays of one library and dtype, and checks that results are too."""

    def __init__(self, module, dtype):
        self.module, self.dtype = module, dtype

    def __call__(self, values):
        return self.module.asarray(values, dtype=getattr(self.module, self.dtype))

    def check(self, got, right, slack=None):
        """got has the values and the shape of `right`, and our library and dtype."""
        kind = torch.Tensor if self.module is torch else (np.ndarray, np.generic)
        assert isinstance(got, kind)
        assert str(got.dtype).removeprefix("torch.") == self.dtype
        assert tuple(got.shape) == np.shape(right)
        slack = max(slack or 0, 1e-12 if self.dtype == "float64" else 2e-6)
        np.testing.assert_allclose(plain(got), plain(right), slack, slack)


def plain(x):
    """x as a NumPy array, whichever library it comes from."""
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


LIBRARIES = [Library(xp, f"float{n}") for xp in (np, torch) for n in (64, 32)]
each_library = pytest.mark.parametrize(
    "lib", LIBRARIES, ids=["numpy64", "numpy32", "torch64", "torch32"]
)

NO_TORCH = """
import importlib.abc, sys
class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}")
from rlnb import MODULE
assert "torch" not in sys.modules
sys.meta_path.insert(0, NoTorch())
"""


def printed_without_torch(module, code):
    """What `code` prints where rlnb.`module` is there and torch is not."""
    code = NO_TORCH.replace("MODULE", module) + code
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def torch_pin():
    pins = (Path(__file__).parents[1] / "requirements.txt").read_text()
    (pin,) = re.findall(r"^torch==.*", pins, re.MULTILINE)
    return pin
