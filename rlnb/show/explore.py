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
import typing

import anywidget
import numpy as np
import traitlets

from .draw import draw, png_bundle
from .picture import COLORS, DASHES, Picture

LIMIT = 2**20  # bytes of numbers and text that a page is given at once
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
        raise ValueError(
            f"sliders are {list(sliders)}; allowed: one, two or three"
        )
    traits = {c.name: c.trait() for c in controls}
    taken = sorted(set(traits) & set(dir(Explorer)))
    if taken:
        raise ValueError(
            f"slider {taken[0]!r} has a name the widget needs itself"
        )
    kind = type("Explorer", (Explorer,), traits)
    return kind(function, controls)


class Explorer(anywidget.AnyWidget):
    """The widget that `explore` returns."""

    _esm = HERE / "explore.js"
    _css = HERE / "explore.css"
    spec = traitlets.Dict().tag(sync=True)
    numbers = traitlets.Bytes().tag(sync=True)
    index = traitlets.Bytes().tag(sync=True)

    def __init__(self, function, controls):
        self._function, self._controls = function, controls
        pack, asks = _pack_grid(function, controls)
        spec = {"controls": [c.spec() for c in controls], "asks": asks}
        super().__init__(
            spec={**spec, **pack.spec()},
            numbers=pack.numbers(),
            index=pack.index(),
        )
        for control in controls:
            self.observe(self._snap, control.name)
        self.on_msg(self._answer)

    @property
    def picture(self):
        """The Picture at the sliders' present values."""
        return self._function(
            **{c.name: getattr(self, c.name) for c in self._controls}
        )

    def _snap(self, change):
        control = next(c for c in self._controls if c.name == change["name"])
        setattr(self, control.name, control.nearest(change["new"]))

    def _answer(self, _, message, buffers):
        at = {
            c.name: c.values[i]
            for c, i in zip(self._controls, message["ask"], strict=True)
        }
        try:
            pack = _Pack()
            pack.add(self._function(**at))
        except Exception as error:  # shown in the page, which else would wait
            self.send({"failed": f"{type(error).__name__}: {error}"})
        else:
            self.send(pack.spec(), buffers=[pack.numbers()])

    def _repr_mimebundle_(self, **kwargs):
        live = super()._repr_mimebundle_(**kwargs) or {}
        data, meta = live if isinstance(live, tuple) else (live, {})
        still, still_meta = png_bundle(draw(self.picture))
        return {**data, **still}, {**meta, **still_meta}


class _Control:
    """One slider: its name, its values, how they read, where it starts."""

    def __init__(self, function, name, positions):
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is None:
            known = ", ".join(inspect.signature(function).parameters)
            raise ValueError(
                f"slider {name!r} is no parameter; allowed: {known}"
            )
        if parameter.default is parameter.empty:
            raise ValueError(
                f"parameter {name!r} has no default to start from"
            )
        self.name = name
        self.values = _values(name, positions)
        self.texts = all(isinstance(v, str) for v in self.values)
        self.start = self.nearest(parameter.default)
        if self.start != parameter.default and not math.isclose(
            self.start, parameter.default, abs_tol=1e-9
        ):
            raise ValueError(
                f"{name} starts at its default {parameter.default!r}, which is "
                f"none of its positions {self.values[:3]}..."
            )
        hints = typing.get_type_hints(function, include_extras=True)
        notes = getattr(hints.get(name), "__metadata__", (name,))
        self.label = notes[0]

    def nearest(self, value):
        if self.texts:
            if value not in self.values:
                raise ValueError(
                    f"{self.name} is {value!r}; allowed: {', '.join(self.values)}"
                )
            return value
        return min(self.values, key=lambda v: abs(v - value))

    def trait(self):
        kind = traitlets.Unicode if self.texts else traitlets.Float
        return kind(self.start).tag(sync=True)

    def spec(self):
        places = 0 if self.texts else max(map(_places, self.values))
        names = (
            self.values
            if self.texts
            else [f"{v:.{places}f}" for v in self.values]
        )
        return {
            "name": self.name,
            "label": self.label,
            "values": self.values,
            "texts": [text.replace("-", "−") for text in names],
            "choice": self.texts,
            "even": not self.texts
            and bool(np.ptp(np.diff(self.values)) < 1e-9),
        }


def _values(name, positions):
    if isinstance(positions, tuple) and len(positions) == 3:
        low, high, step = positions
        if not (low < high and step > 0):
            raise ValueError(
                f"{name} is {positions}; allowed: (low, high, step > 0)"
            )
        count = math.floor((high - low) / step + 1e-9) + 1
        # rounded, so that the tenth step of .02 is .2 and not .19999999999999998
        values = [round(low + k * step, 10) for k in range(count)]
    else:
        values = [v if isinstance(v, str) else float(v) for v in positions]
    kinds = {isinstance(v, str) for v in values}
    rising = all(a < b for a, b in itertools.pairwise(values)) or kinds == {
        True
    }
    if len(set(values)) < 2 or len(kinds) > 1 or not rising:
        raise ValueError(
            f"positions of {name} are {positions!r}; allowed: (low, high, step), "
            "two or more rising numbers, or two or more different texts"
        )
    return values


def _places(value):
    return len(f"{value:.6f}".rstrip("0").split(".")[1])


class _Pack:
    """Pictures as numbers: a template, and per picture what fills it.

    `add` turns a picture into one row of ids, an id for each array, number
    and text in it. Equal ones share an id, so what a slider does not change
    is kept once.
    """

    def __init__(self):
        self.template, self.rows = None, []
        self.arrays, self.texts, self.bytes = {}, {}, 0

    def add(self, picture):
        if not isinstance(picture, Picture):
            raise ValueError(
                f"got {type(picture).__name__}; allowed: a Picture"
            )
        row = []
        template = self._replace(_plain(picture), row)
        if self.template is None:
            self.template = template
        elif template != self.template:
            raise ValueError(
                "panels, items, ticks and read-outs must be the same at every "
                "slider position; only their numbers and texts may change"
            )
        self.rows.append(row)
        self.bytes += 4 * len(row)

    def _replace(self, node, row):
        if isinstance(node, dict):
            return {
                key: self._replace(value, row) for key, value in node.items()
            }
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
        rows = np.array(self.rows, dtype=np.uint32)
        return rows[:, self._changing()].tobytes()

    def spec(self):
        lengths = [len(key) // 4 for key in self.arrays]
        return {
            "template": self.template,
            "texts": list(self.texts),
            "starts": np.cumsum([0, *lengths]).tolist(),
            "first": self.rows[0],
            "changing": self._changing().tolist(),
        }

    def _changing(self):
        rows = np.array(self.rows, dtype=np.uint32)
        return np.flatnonzero((rows != rows[0]).any(axis=0))


def _pack_grid(function, controls):
    """(pack, asks): the picture at every position, or at the start if too big."""
    names = [control.name for control in controls]

    def add(pack, values):
        at = dict(zip(names, values, strict=True))
        try:
            pack.add(function(**at))
        except Exception as error:
            where = ", ".join(
                f"{name}={value!r}" for name, value in at.items()
            )
            raise ValueError(
                f"{function.__name__}({where}): {error}"
            ) from error

    pack = _Pack()
    for values in itertools.product(*(control.values for control in controls)):
        add(pack, values)
        if pack.bytes > LIMIT:
            pack = _Pack()
            add(pack, [control.start for control in controls])
            return pack, True
    return pack, False


def _plain(picture):
    """The picture as dicts, lists, arrays, numbers and texts, for explore.js."""
    return {
        "readouts": [
            {"name": r.name, "text": r.text} for r in picture.readouts
        ],
        "says": picture.says,
        "panels": [_plain_panel(panel) for panel in picture.panels],
    }


def _plain_panel(panel):
    return {
        "title": panel.title,
        "alt": panel.alt,
        "xlabel": panel.xlabel,
        "ylabel": panel.ylabel,
        "xlim": np.array(panel.xlim),
        "ylim": np.array(panel.ylim),
        "log_x": panel.log_x,
        "xticks": {
            "at": np.array([*panel.xticks]),
            "text": [*panel.xticks.values()],
        },
        "yticks": {
            "at": np.array([*panel.yticks]),
            "text": [*panel.yticks.values()],
        },
        "legend": panel.legend,
        "items": [_plain_item(item) for item in panel.items],
    }


def _plain_item(item):
    plain = {"kind": type(item).__name__, **vars(item)}
    plain["color"] = COLORS[item.color]
    if "dash" in plain:
        plain["dash"] = DASHES[item.dash]
    return plain
