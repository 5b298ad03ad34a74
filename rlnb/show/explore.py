"""Sliders on a picture: one view for the whole series.

A picture function is called once for every position of its sliders, and all
the numbers go to the page at once, each distinct array a single time. Moving
a slider then asks nobody: explore.js looks the numbers up and draws. Formulas
live in Python only. Where the numbers are more than LIMIT bytes, the same
view asks the kernel for each picture instead.
"""

import inspect
import itertools
import math
import pathlib
from numbers import Real

import anywidget
import numpy as np
import traitlets

from .draw import draw, png_bundle
from .picture import COLORS, DASHES, Picture

LIMIT = 2**20  # bytes of numbers and text that a page is given at once
MOST = 1000  # positions of a slider: more than it has pixels
HERE = pathlib.Path(__file__).parent


def explore(function, **sliders):
    """Show `function(...) -> Picture` under one, two or three sliders.

    Each slider is named after a parameter of the function. Its positions are
    (low, high, step), a list of numbers, or a list of texts, which gives
    radio buttons. A slider starts at the parameter's default; its label is
    the parameter's `Annotated` text. The other parameters keep their
    defaults. In the result, each slider's value is an attribute: view.eps.
    """
    controls = [_Control(function, name, at) for name, at in sliders.items()]
    if not 1 <= len(controls) <= 3:
        raise ValueError(f"sliders are {list(sliders)}; allowed: one, two or three")
    traits = {c.name: c.trait() for c in controls}
    taken = sorted(set(traits) & set(dir(Explorer)))
    if taken:
        raise ValueError(f"slider {taken[0]!r} has a name the widget needs itself")
    kind = type("Explorer", (Explorer,), traits)
    return kind(function, controls)


class View(anywidget.AnyWidget):
    """What explore.js draws: pictures as numbers, under sliders or without."""

    _esm = HERE / "explore.js"
    _css = HERE / "explore.css"
    spec = traitlets.Dict().tag(sync=True)
    numbers = traitlets.Bytes().tag(sync=True)
    index = traitlets.Bytes().tag(sync=True)


class Explorer(View):
    """The widget that `explore` returns."""

    def __init__(self, function, controls):
        self._function, self._controls = function, controls
        pack, asks = _pack_grid(function, controls)
        super().__init__(**pack.traits([c.spec() for c in controls], asks))
        self._template = pack.template
        self.on_msg(self._answer)

    @property
    def picture(self):
        """The Picture at the sliders' present values."""
        return self._function(**{c.name: getattr(self, c.name) for c in self._controls})

    def _answer(self, _, message, buffers):
        at = {
            c.name: c.values[i]
            for c, i in zip(self._controls, message["ask"], strict=True)
        }
        try:
            pack = _Pack(self._template)
            pack.add(self._function(**at))
        except Exception as error:  # noqa: BLE001 - said in the page
            self.send({"failed": f"{type(error).__name__}: {error}"})
        else:
            self.send(pack.spec(), buffers=[pack.numbers()])

    def _repr_mimebundle_(self, **kwargs):
        live = super()._repr_mimebundle_(**kwargs) or {}
        data, meta = live if isinstance(live, tuple) else (live, {})
        still, still_meta = png_bundle(draw(self.picture))
        return {**data, **still}, {**meta, **still_meta}


class _Position(traitlets.TraitType):
    """A slider's value: whatever is set goes to the nearest position."""

    def __init__(self, control):
        super().__init__(control.start)
        self.control = control

    def validate(self, obj, value):
        return self.control.nearest(value)


class _Control:
    """One slider: its name, its values, how they read, where it starts."""

    def __init__(self, function, name, positions):
        known = inspect.signature(function, eval_str=True).parameters
        if name not in known:
            raise ValueError(
                f"slider {name!r} is no parameter; allowed: {', '.join(known)}"
            )
        parameter = known[name]
        if parameter.default is parameter.empty:
            raise ValueError(f"parameter {name!r} has no default to start from")
        self.name = name
        whole = type(parameter.default) is int
        self.values, self.step = _values(name, positions, whole)
        self.texts = all(isinstance(v, str) for v in self.values)
        self.start = self.nearest(parameter.default)
        if self.start != parameter.default and not math.isclose(
            self.start, parameter.default, abs_tol=1e-9
        ):
            raise ValueError(
                f"{name} starts at its default {parameter.default!r}, which is "
                f"none of its positions {self.values[:3]}..."
            )
        notes = getattr(parameter.annotation, "__metadata__", (name,))
        self.label = notes[0]

    def nearest(self, value):
        if value in self.values:
            return self.values[self.values.index(value)]
        number = isinstance(value, Real) and math.isfinite(value)
        if self.texts or not number:
            allowed = ", ".join(self.values) if self.texts else "a number"
            raise ValueError(f"{self.name} is {value!r}; allowed: {allowed}")
        return min(self.values, key=lambda v: abs(v - value))

    def trait(self):
        return _Position(self).tag(sync=True)

    def spec(self):
        values, step = self.values, self.step
        return {
            "name": self.name,
            "label": self.label,
            "values": values,
            "texts": values if self.texts else _readable(values, step),
            "choice": self.texts,
            "start": values.index(self.start),
            "step": step,
        }


def _values(name, positions, whole):
    """(values, step); step is None unless they are evenly spaced numbers."""
    try:
        values, step = list(positions), None
        if all(isinstance(v, str) for v in values):
            good = len(values) == len(set(values))
        else:
            if isinstance(positions, tuple) and len(values) == 3:
                low, high, step = values
                count = math.floor((high - low) / step + 1e-9) + 1
                values = [low + k * step for k in range(min(count, MOST + 1))]
            values = list(map(float, values))
            rising = all(a < b for a, b in itertools.pairwise(values))
            good = rising and all(map(math.isfinite, values))
        if not good or not 2 <= len(values) <= MOST:
            raise ValueError
    except (TypeError, ValueError, ArithmeticError):
        raise ValueError(
            f"positions of {name} are {positions!r}; allowed: (low, high, "
            f"step > 0), rising numbers, or different texts; 2 to {MOST}"
        ) from None
    if isinstance(values[0], str):
        return values, None
    # rounded: the tenth step of .02 is .2, not .19999999999999998
    step = round(values[1] - values[0], 10)
    even = [round(values[0] + k * step, 10) for k in range(len(values))]
    if step == 0 or not np.allclose(even, values, rtol=0, atol=1e-12):
        even, step = values, None
    if whole and all(v == int(v) for v in even):
        even, step = list(map(int, even)), step and int(step)
    return even, step


def _readable(values, step):
    """Each number as text, evenly spaced ones with equally many decimals."""
    decimals = [f"{v:.10f}".rstrip("0").split(".")[1] for v in values]
    places = max(map(len, decimals))
    form = "g" if step is None or places > 6 else f".{places}f"
    texts = [f"{v:{form}}" for v in values]
    return [text.replace("-", "−") for text in texts]


class _Pack:
    """Pictures as numbers: a template, and per picture what fills it.

    `add` turns a picture into one row of ids, an id for each array, number
    and text in it. Equal ones share an id, so what a slider does not change
    is kept once.
    """

    def __init__(self, template=None):
        self.template, self.rows = template, []
        self.arrays, self.texts, self.bytes = {}, {}, 0

    def add(self, picture):
        if not isinstance(picture, Picture):
            got = type(picture).__name__
            raise ValueError(f"got {got}; allowed: a Picture")  # noqa: TRY004
        row = []
        template = self._replace(_plain(picture), row)
        if self.template not in (None, template):
            raise ValueError(
                "panels, items, ticks, read-outs and the legend's rows must be "
                "the same at every slider position; only numbers and texts "
                "may change"
            )
        if not self.rows:
            self.template = template
            self.changing = np.zeros(len(row), dtype=bool)
        self.rows.append(np.array(row, dtype=np.uint32))
        self.changing |= self.rows[-1] != self.rows[0]

    def _replace(self, node, row):
        if isinstance(node, dict):
            return {key: self._replace(value, row) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [self._replace(value, row) for value in node]
        if node is None or isinstance(node, (bool, int)):
            return node
        if isinstance(node, str):
            pool, key, kind = self.texts, node, "text"
            size = len(node.encode())
        else:
            values = np.atleast_1d(np.asarray(node, dtype=np.float32))
            pool, key, size = self.arrays, values.tobytes(), values.nbytes
            kind = "array" if isinstance(node, np.ndarray) else "number"
        if key not in pool:
            pool[key] = len(pool)
            self.bytes += size
        row.append(pool[key])
        return {"$": kind, "at": len(row) - 1}

    def numbers(self):
        return b"".join(self.arrays)

    def index(self):
        return np.array(self.rows)[:, self.changing].tobytes()

    @property
    def size(self):
        """Bytes that go to the page."""
        return self.bytes + 4 * len(self.rows) * int(self.changing.sum())

    def spec(self):
        lengths = [len(key) // 4 for key in self.arrays]
        return {
            "template": self.template,
            "texts": list(self.texts),
            "starts": np.cumsum([0, *lengths]).tolist(),
            "first": self.rows[0].tolist(),
            "changing": np.flatnonzero(self.changing).tolist(),
        }

    def traits(self, controls, asks):
        """The traits of a View."""
        spec = {"controls": controls, "asks": asks, **self.spec()}
        return {"spec": spec, "numbers": self.numbers(), "index": self.index()}


def pack_one(picture):
    """The traits of a View that shows one picture, without sliders."""
    pack = _Pack()
    pack.add(picture)
    return pack.traits([], False)


def _pack_grid(function, controls):
    """(pack, asks): the picture at every position, or at the start if too big."""
    names = [control.name for control in controls]

    def add(pack, values):
        at = dict(zip(names, values, strict=True))
        try:
            pack.add(function(**at))
        except Exception as error:
            where = ", ".join(f"{name}={value!r}" for name, value in at.items())
            called = getattr(function, "__name__", "function")
            raise ValueError(f"{called}({where}): {error}") from error

    pack = _Pack()
    for values in itertools.product(*(control.values for control in controls)):
        add(pack, values)
        if pack.size > LIMIT:
            pack = _Pack()
            add(pack, [control.start for control in controls])
            return pack, True
    return pack, False


def _plain(picture):
    """The picture as dicts, lists, arrays, numbers and texts, for explore.js."""
    return {
        "readouts": [{"name": r.name, "text": r.text} for r in picture.readouts],
        "says": picture.says,
        "panels": [_plain_panel(panel) for panel in picture.panels],
    }


def _plain_panel(panel):
    return {
        "title": panel.title,
        "alt": panel.words,
        "xlabel": panel.xlabel,
        "ylabel": panel.ylabel,
        "xlim": np.array(panel.xlim),
        "ylim": np.array(panel.ylim),
        "log_x": panel.log_x,
        "xticks": {"at": np.array([*panel.xticks]), "text": [*panel.xticks.values()]},
        "yticks": {"at": np.array([*panel.yticks]), "text": [*panel.yticks.values()]},
        "legend": panel.legend,
        "items": [_plain_item(item) for item in panel.items],
    }


def _plain_item(item):
    plain = {"kind": type(item).__name__, **vars(item)}
    plain["color"] = COLORS[item.color]
    if "dash" in plain:
        plain["dash"] = DASHES[item.dash]
    return plain
