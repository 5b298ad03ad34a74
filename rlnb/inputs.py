"""What every formula does with its arguments before it computes.

The formulas take NumPy arrays, torch tensors or plain numbers and lists, and
refuse what would give a wrong number. A refusal names the argument, the value
seen and what is allowed. Nothing here imports torch.
"""

import math
from numbers import Real

import array_api_compat as api
import numpy as np


def refuse(name, seen, allowed):
    raise ValueError(f"{name} is {seen}; allowed: {allowed}")


def arrays(**named):
    """Return (namespace, array, array, ...) in one library and one dtype.

    Numbers and lists follow the arrays beside them; float64 and float32 are
    kept, integers and booleans become floating. Refused: NumPy beside torch,
    half precision (its log-probabilities are too coarse to subtract),
    complex numbers, text, nothing at all.
    """
    tensors = [name for name, x in named.items() if api.is_torch_array(x)]
    plain = [name for name, x in named.items() if isinstance(x, np.ndarray)]
    if tensors and plain:
        raise ValueError(
            f"{tensors[0]} is a torch tensor and {plain[0]} a NumPy array; "
            "allowed: both from one library"
        )
    found = {name: _array(name, x) for name, x in named.items()}
    scalars = [name for name, x in named.items() if isinstance(x, np.generic)]
    given = [found[name] for name in tensors or plain or scalars or found]
    xp = api.array_namespace(*given)
    floating = [x for x in given if xp.isdtype(x.dtype, "real floating")]
    default = xp.empty(0).dtype  # float64 in NumPy, torch's default in torch
    dtype = xp.result_type(*floating) if floating else default
    return xp, *(_like(given[0], x, dtype) for x in found.values())


def _array(name, value):
    if not api.is_torch_array(value):
        try:
            value = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            refuse(name, f"no array ({error})", "numbers in a rectangular shape")
        if value.dtype.kind not in "biufc":
            refuse(name, f"of dtype {value.dtype}", "real numbers")
    dtype = str(value.dtype).removeprefix("torch.")
    if "complex" in dtype:
        refuse(name, f"of dtype {dtype}", "real numbers")
    if "float" in dtype and dtype not in ("float32", "float64"):
        refuse(name, f"of dtype {dtype}", "float32 or float64")
    if 0 in value.shape:
        refuse(name, f"empty, shape {tuple(value.shape)}", "at least one value")
    return value


def _like(given, x, dtype):
    xp = api.array_namespace(given)
    if api.is_torch_array(given) and not api.is_torch_array(x):
        return xp.asarray(x.tolist(), dtype=dtype, device=given.device)
    return xp.astype(x, dtype, copy=False)


def integers(name, value, beside=None):
    """Return (namespace, array) of int64, in the library of `beside`."""
    mixed = isinstance(value, np.ndarray) and api.is_torch_array(beside)
    if mixed or api.is_torch_array(value) and isinstance(beside, np.ndarray):
        refuse(name, type(value), f"an array as the one beside it, {type(beside)}")
    value = _array(name, value)
    xp = api.array_namespace(value)
    if not xp.isdtype(value.dtype, "integral"):
        refuse(name, f"of dtype {value.dtype}", "integers")
    beside = value if beside is None else beside
    xp = api.array_namespace(beside)
    return xp, _like(beside, value, xp.int64)


def widened(x):
    """x in float32 if it is half precision, else x itself."""
    if api.is_array_api_obj(x) and str(x.dtype).endswith("float16"):
        xp = api.array_namespace(x)
        return xp.astype(x, xp.float32)
    return x


def refuse_where(xp, bad, name, x, allowed):
    """Refuse x if any entry of `bad` is true, and say which entry it was."""
    if not bool(xp.any(bad)):
        return
    bad, x = xp.broadcast_arrays(bad, x)
    at = tuple(int(i[0]) for i in xp.nonzero(bad)) if x.ndim else ()
    where = f"[{', '.join(map(str, at))}]" if at else ""
    refuse(name + where, f"{x[at].item():.7g}", allowed)


def refuse_infinite(xp, name, x):
    refuse_where(xp, ~xp.isfinite(x), name, x, "finite numbers")


def refuse_log_probs(xp, logp, logq):
    """Refuse what cannot be two log-probabilities of one sampled outcome."""
    for name, x in (("logp", logp), ("logq", logq)):
        refuse_where(xp, ~(x <= 1e-5), name, x, "log-probabilities, at most 0")
    both = (logp == -xp.inf) & (logq == -xp.inf)
    refuse_where(xp, both, "logp", logp, "not -inf where logq is -inf")


def refuse_logits(xp, logits):
    """Refuse what gives no distribution; -inf is an action that is masked."""
    refuse_where(xp, ~(logits < xp.inf), "logits", logits, "finite, or -inf")
    top = xp.max(logits, axis=-1)
    refuse_where(xp, top == -xp.inf, "the largest of logits", top, "finite")


def refuse_non_distribution(xp, name, p, axis):
    if axis not in range(-p.ndim, p.ndim):
        refuse("axis", repr(axis), f"an axis of {name}, shape {tuple(p.shape)}")
    refuse_where(xp, ~(p >= 0), name, p, "probabilities, at least 0")
    total = xp.sum(p, axis=axis)
    slack = 1e-6 if p.dtype == xp.float64 else 1e-4
    off = ~(abs(total - 1) <= slack)
    refuse_where(xp, off, f"the sum of {name}", total, "1, as for a distribution")


def largest_exponent(xp, x):
    """The largest whole number whose exponential is finite in x's dtype."""
    return 88 if x.dtype == xp.float32 else 709


def refuse_shapes(**named):
    """Refuse arrays that do not broadcast, naming each with its shape."""
    shapes = {name: tuple(x.shape) for name, x in named.items()}
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError:
        seen = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(
            f"shapes do not fit together: {seen}; allowed: equal shapes, or "
            "shapes that broadcast"
        ) from None


def number(name, value, allowed, accept):
    """Return `value` as a float if it is one number that `accept`s.

    Refused from 1e30 on, so that its products stay finite in float32.
    """
    plain = value.item() if getattr(value, "shape", None) == () else value
    real = isinstance(plain, Real) and not isinstance(plain, bool)
    try:
        x = float(plain) if real else math.nan
    except OverflowError:
        x = math.inf
    if not (abs(x) < 1e30 and accept(x)):
        refuse(name, repr(value), allowed)
    return x


def needs_torch(what):
    """Return torch, or say in one line that `what` needs it."""
    try:
        import torch
    except ImportError:
        raise ImportError(f"{what} needs torch: pip install torch==2.13.0") from None
    return torch
