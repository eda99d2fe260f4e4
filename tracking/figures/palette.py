"""The look of a run in every plot: colours that the colour-blind tell apart, then dashes and markers.

The colours follow Okabe and Ito, "Color universal design" (2008), with one blue instead of two, darkened for a white
page and lightened for a dark one until each stands out of it by 3:1. After eight settings the dash and the marker
change, after 48 the marker alone.
"""

from dataclasses import dataclass

LIGHT = ("#0072b2", "#d55e00", "#00875f", "#c4458f", "#5c4500", "#9400e0", "#16202a", "#8a8a8a")
DARK = ("#5aa9e6", "#f28e2b", "#3fd0a0", "#e08bc8", "#f2dc5d", "#e0284f", "#ffffff", "#b8bfc8")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon", "hexagram", "bowtie")

# Of a step, and of memory by kind; host_ kinds have their device kind's colour, hatched.
STEP_COLOURS = {"compute": 0, "communication": 1, "waiting": 7}
MEMORY_COLOURS = {
    "parameters": 0,
    "gradients": 1,
    "optimizer": 2,
    "activations": 3,
    "average": 4,
    "buffers": 5,
    "other": 7,
}


@dataclass(frozen=True)
class CurveStyle:
    colour: int  # of LIGHT and DARK
    dash: str
    marker: str


def look(number: int) -> CurveStyle:
    """Returns the style of the setting at this index of the list."""
    turn = number // len(LIGHT)
    marker = MARKERS[(turn + turn // len(DASHES)) % len(MARKERS)]
    return CurveStyle(number % len(LIGHT), DASHES[turn % len(DASHES)], marker)


def look_of_points(number: int) -> CurveStyle:
    """Returns the style of a trace of points, which may lie over each other: colour and marker change together."""
    return CurveStyle(number % len(LIGHT), DASHES[number // len(LIGHT) % len(DASHES)], MARKERS[number % len(MARKERS)])
