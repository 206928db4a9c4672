"""A timeline as a picture: a band per device, widths true to cost, kept activations below each.

    device 0  [F0][F1]......[ BW0  ][ BW1  ]
              ▁▁▁▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁     activations kept, with their peak

matplotlib draws it, without its global state, so that it works in servers and threads. The same
simulation gives the same bytes, so that pictures can be checked in.
"""

import io
from typing import TYPE_CHECKING, Any

from jaxpipe.draw.colors import COLORS, HATCHES, NAMES, luminance
from jaxpipe.draw.live import live_steps
from jaxpipe.schedule.action import Cell, Kind
from jaxpipe.schedule.simulate import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND = 0.56  # of a device's unit of height
_LIVE = 0.28
_INCHES_PER_DEVICE = 0.55
_LABEL_POINTS = 7.0
_MAX_INCHES = 200.0
_AXES_WIDTH = 0.775  # of the figure's, as matplotlib lays it out


def to_svg(simulation: Simulation, *, width: float | None = None) -> str:
    """The picture as SVG.

    Args:
        simulation: What to show.
        width: Inches; by default wide enough for the labels of all but very short actions, up to
            some metres.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If `width` is not positive.
    """
    buffer = io.StringIO()
    _save(simulation, width, buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def to_png(simulation: Simulation, *, width: float | None = None, dpi: int = 120) -> bytes:
    """The picture as PNG.

    Args:
        simulation: What to show.
        width: Inches; by default as for `to_svg`, up to 40.
        dpi: Pixels per inch.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If `width` is not positive.
    """
    buffer = io.BytesIO()
    width = min(40.0, _default_width(simulation)) if width is None else width
    _save(simulation, width, buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def _save(simulation: Simulation, width: float | None, buffer: Any, **options: Any) -> None:
    try:
        import matplotlib
    except ImportError:
        raise ImportError(
            "pictures need matplotlib, which is not installed; pip install 'jaxpipe[viz]', or "
            "draw as text"
        ) from None
    width = _default_width(simulation) if width is None else width
    if not width > 0:
        raise ValueError(f"width={width} inches is no picture; use width=10, say")
    # The salt makes the ids within an SVG depend on its content alone.
    settings: Any = {"svg.hashsalt": "jaxpipe", "svg.fonttype": "none", "font.size": 8.0}
    with matplotlib.rc_context(settings):
        _figure(simulation, width).savefig(buffer, bbox_inches="tight", **options)


def _default_width(simulation: Simulation) -> float:
    durations = sorted(
        simulation.ends[cell[0]] - simulation.starts[cell[0]]
        for row in simulation.schedule.rows
        for cell in row
    )
    if not durations or simulation.makespan == 0:
        return 6.0
    # Three labels of four characters to an inch, for nine tenths of the actions.
    typical = durations[len(durations) // 10] or durations[-1]
    return min(_MAX_INCHES, max(6.0, simulation.makespan / typical * 0.36))


def _figure(simulation: Simulation, width: float) -> "Figure":
    from matplotlib.figure import Figure

    schedule = simulation.schedule
    figure = Figure(figsize=(width, 0.9 + _INCHES_PER_DEVICE * schedule.num_devices))
    axes = figure.add_subplot()
    inches_per_unit = _AXES_WIDTH * width / simulation.makespan if simulation.makespan else 1.0
    for device, row in enumerate(schedule.rows):
        axes.axhspan(device, device + _BAND, color="#f4f4f4", zorder=0)
        for cell in row:
            _draw_cell(axes, simulation, device, cell, inches_per_unit)
        _draw_live(axes, simulation, device)
    axes.set_xlim(0, simulation.makespan or 1.0)
    axes.set_ylim(schedule.num_devices, -0.15)
    axes.set_yticks(
        [device + _BAND / 2 for device in range(schedule.num_devices)],
        [f"device {device}" for device in range(schedule.num_devices)],
    )
    axes.tick_params(left=False)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("time")
    axes.set_title(_title(simulation), loc="left")
    _add_legend(axes, simulation)
    return figure


def _draw_cell(
    axes: "Axes", simulation: Simulation, device: int, cell: Cell, inches_per_unit: float
) -> None:
    start = simulation.starts[cell[0]]
    duration = simulation.ends[cell[0]] - start
    # Actions issued together share the time, so they share the band.
    height = _BAND / len(cell)
    for place, action in enumerate(cell):
        color = COLORS[action.kind]
        bottom = device + place * height
        axes.broken_barh(
            [(start, duration)],
            (bottom, height),
            facecolor=color,
            edgecolor="white",
            hatch=HATCHES.get(action.kind),
            linewidth=0.5,
        )
        label = str(action)
        if _ems(label) * _LABEL_POINTS <= duration * inches_per_unit * 72:
            axes.text(
                start + duration / 2,
                bottom + height / 2,
                label,
                ha="center",
                va="center",
                fontsize=_LABEL_POINTS if len(cell) == 1 else _LABEL_POINTS - 2,
                color="black" if luminance(color) > 0.5 else "white",
            )


def _ems(label: str) -> float:
    """The width of a label with a little room, in font sizes; a W is half as wide again."""
    return 0.66 * len(label) + 0.33 * label.count("W") + 0.2


def _draw_live(axes: "Axes", simulation: Simulation, device: int) -> None:
    """A filled staircase under the band, as high as the largest peak of all devices."""
    peaks = simulation.peak_live_to_weight_gradient
    if not max(peaks):
        return
    times, levels = [0.0], [0]
    for time, live in live_steps(simulation, device):
        times += [time, time]
        levels += [levels[-1], live]
    times.append(simulation.makespan)
    levels.append(levels[-1])
    floor = device + _BAND + _LIVE + 0.04
    scale = _LIVE / max(peaks)
    axes.fill_between(
        times,
        [floor - level * scale for level in levels],
        floor,
        color="#b8b8b8",
        linewidth=0,
    )
    axes.annotate(
        f"{peaks[device]}",
        (1.0, floor),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize=6,
        color="#606060",
    )


def _title(simulation: Simulation) -> str:
    schedule = simulation.schedule
    return (
        f"{schedule.name}: {schedule.num_devices} devices, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches    makespan {simulation.makespan:.6g}, "
        f"bubble {simulation.bubble:.1%}"
    )


def _add_legend(axes: "Axes", simulation: Simulation) -> None:
    from matplotlib.patches import Patch

    present = {action.kind for action in simulation.schedule.positions}
    patches = [
        Patch(facecolor=COLORS[kind], hatch=HATCHES.get(kind), label=NAMES[kind])
        for kind in Kind
        if kind in present
    ]
    patches.append(Patch(facecolor="#f4f4f4", edgecolor="#d0d0d0", label="idle"))
    patches.append(Patch(facecolor="#b8b8b8", label="activations kept, and their peak"))
    axes.legend(
        handles=patches,
        loc="upper left",
        bbox_to_anchor=(0, -0.35 / simulation.schedule.num_devices - 0.08),
        ncols=len(patches),
        frameon=False,
    )
