"""A schedule as a timeline of characters, for terminals and log files.

One row per device, time to scale: a backward twice as long as a forward takes twice the width. Dots
are idle time, dashes the rest of an action whose label is shorter than it lasts:

    device 0  F0 F1 .........BW0-- BW1--
    device 1  ...F0 BW0-- F1 BW1-- ......

A timeline wider than the page keeps its two ends, one taller its first and last devices.
"""

from typing import NamedTuple

from jaxpipe.schedule.action import Action, Cell
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.simulate import Simulation, simulate

_MAX_ROWS = 16
_GAP = " ~~ "


class _Block(NamedTuple):
    """One cell in the timeline, from one character to another."""

    start: int
    end: int
    label: str


def draw_text(schedule: Schedule, costs: Costs | None = None, *, width: int = 100) -> str:
    """Draws a schedule and sums it up in one line.

    Args:
        schedule: What to draw.
        costs: How long its actions last; by default F = B = W = R = 1.
        width: The most characters of a line; the time between both ends is left out where the
            timeline is longer.

    Raises:
        ValueError: If `width` leaves no room.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> print(draw_text(one_f_one_b(2, 2)))
        1f1b: 2 devices, 2 stages, 2 microbatches
        device 0  F0 F1 ...BW0-- ...BW1--
        device 1  ...F0 BW0-- F1 BW1-- ...
        makespan 9, bubble 33.3 % (lower bound 9), peak live activations 2 1
    """
    if width < 40:
        raise ValueError(f"width={width} leaves no room for a timeline; use width=40 or more")
    simulation = simulate(schedule, costs)
    rows, length = _blocks(simulation)
    margin = len(f"device {schedule.num_devices - 1}  ")
    room = width - margin - len(_GAP)
    windows = [(0, length)]
    if length > width - margin:
        windows = [(0, room * 2 // 3), (length - (room - room * 2 // 3), length)]
    lines = [_title(schedule)]
    for device, row in enumerate(rows):
        if schedule.num_devices > _MAX_ROWS:
            half = _MAX_ROWS // 2
            if half <= device < schedule.num_devices - half:
                if device == half:
                    left_out = schedule.num_devices - 2 * half
                    lines.append(f"{'...':<{margin}}{left_out} more devices")
                continue
        drawn = _GAP.join(_draw(row, *window) for window in windows)
        lines.append(f"{f'device {device}':<{margin}}{drawn}".rstrip())
    lines.append(_summary(simulation))
    return "\n".join(lines)


def _title(schedule: Schedule) -> str:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'' if number == 1 else 's'}"

    parts = [
        count(schedule.num_devices, "device"),
        count(schedule.num_stages, "stage"),
        count(schedule.num_microbatches, "microbatch").replace("microbatchs", "microbatches"),
    ]
    if schedule.num_slices > 1:
        parts.append(f"{count(schedule.num_slices, 'slice')} each")
    return f"{schedule.name}: {', '.join(parts)}"


def _summary(simulation: Simulation) -> str:
    peaks = simulation.peak_live_to_weight_gradient
    shown = " ".join(map(str, peaks)) if len(peaks) <= 8 else f"{max(peaks)} at most"
    return (
        f"makespan {simulation.makespan:.6g}, bubble {simulation.bubble:.1%} "
        f"(lower bound {simulation.lower_bound:.6g}), peak live activations {shown}"
    ).replace("%", " %")


def _label(schedule: Schedule, cell: Cell) -> str:
    """The cell as short as it stays clear: on a device with one stage its number says nothing."""
    one_stage = schedule.num_chunks == 1 and len(schedule.placement.paths) == 1

    def label(action: Action) -> str:
        return str(action)[len(str(action.stage)) :] if one_stage else str(action)

    return "+".join(label(action) for action in cell)


def _blocks(simulation: Simulation) -> tuple[list[list[_Block]], int]:
    """Where every cell of every device stands, in characters, and the length of the timeline."""
    schedule = simulation.schedule
    labels = [[_label(schedule, cell) for cell in row] for row in schedule.rows]
    durations = [
        simulation.ends[cell[0]] - simulation.starts[cell[0]]
        for row in schedule.rows
        for cell in row
    ]
    # Very short actions do not stretch the picture: they lose their label instead.
    worthwhile = sum(durations) / max(1, len(durations)) / 4
    scale = max(
        (
            (len(label) + 1) / duration
            for label, duration in zip(
                (label for row in labels for label in row), durations, strict=True
            )
            if duration > worthwhile
        ),
        default=0.0,
    )
    blocks = [
        [
            _Block(
                round(simulation.starts[cell[0]] * scale),
                round(simulation.ends[cell[0]] * scale),
                label,
            )
            for cell, label in zip(row, row_labels, strict=True)
        ]
        for row, row_labels in zip(schedule.rows, labels, strict=True)
    ]
    return blocks, round(simulation.makespan * scale)


def _draw(blocks: list[_Block], first: int, last: int) -> str:
    """The part of a row from one character to another; what is cut off loses its label."""
    text = ""
    for start, end, label in blocks:
        if end <= first or start >= last or start == end:
            continue
        whole = first <= start and end <= last
        start, end = max(start, first) - first, min(end, last) - first
        text += "." * (start - len(text))
        size = end - start - 1
        text += f"{label[:size] if whole else '':-<{size}} "
    return text + "." * (last - first - len(text))
