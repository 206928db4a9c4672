"""The colour of every kind of action, in pictures and traces.

No two kinds share a hue that colour-blind people confuse, and their brightness differs by steps
that survive a grey printer; a hatch sets apart the kinds that are rare.
"""

from jaxpipe.schedule.action import Kind

COLORS: dict[Kind, str] = {
    Kind.F: "#d3e9f7",  # pale blue
    Kind.B: "#f5c242",  # amber
    Kind.W: "#66a9a3",  # teal
    Kind.BW: "#b8531a",  # vermilion
    Kind.R: "#8d6cae",  # purple
    Kind.U: "#303030",  # almost black
    Kind.S: "#9ab8e6",  # lavender
    Kind.H: "#31688e",  # dark blue
}

HATCHES: dict[Kind, str] = {Kind.R: "//", Kind.U: "", Kind.S: "..", Kind.H: "xx"}

NAMES: dict[Kind, str] = {
    Kind.F: "F forward",
    Kind.B: "B input gradient",
    Kind.W: "W weight gradient",
    Kind.BW: "BW both gradients",
    Kind.R: "R recompute",
    Kind.U: "U update",
    Kind.S: "S statistics of the head",
    Kind.H: "H head and loss",
}


def luminance(color: str) -> float:
    """How bright a colour is in grey, from 0 to 1.

    Example:
        >>> luminance("#ffffff"), luminance("#000000")
        (1.0, 0.0)
    """
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return round(0.299 * red + 0.587 * green + 0.114 * blue, 6)
