"""Pictures: data first (`Picture`), then `draw` them or `explore` them.

picture.py says what a picture is, draw.py renders one with matplotlib,
explore.py puts sliders on a function that returns one, live.py replaces one
while the kernel works.
"""

from .draw import draw
from .explore import explore
from .live import Live
from .picture import Band, Bars, Dots, Line, Mark, Panel, Picture, Readout

__all__ = [
    "Band",
    "Bars",
    "Dots",
    "Line",
    "Live",
    "Mark",
    "Panel",
    "Picture",
    "Readout",
    "draw",
    "explore",
]
