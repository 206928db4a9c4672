"""Warnings about choices that are legal, and wasteful: each says how much, and what would do.

Each is said once in a process, and silenced like any other:
`warnings.simplefilter("ignore", jaxpipe.WastefulWarning)`.
"""

import sys
import warnings

from jaxpipe.lower.program import Program
from jaxpipe.runtime.layout import Layout
from jaxpipe.runtime.spec import PipelineSpec

MOST_BUBBLE = 0.5
"""Of the loop's time."""

MOST_IMBALANCE = 1.5
"""Layers of the largest stage by the mean of all."""

MOST_FILLERS = 0.25
"""Examples that only fill microbatches, by real ones."""


_said: set[str] = set()
"""What was said already. Python's own register of warnings forgets whenever a filter changes."""


class WastefulWarning(UserWarning):
    """A pipeline does what was asked, at a cost that may not be meant."""


def warn_of_schedule(program: Program) -> None:
    """Warns of a large bubble."""
    schedule = program.schedule
    if program.bubble <= MOST_BUBBLE or schedule.num_devices == 1:
        return
    # The ramps take as long for any number of microbatches.
    share = program.bubble / (1 - program.bubble)
    enough = round(schedule.num_microbatches * share * (1 - MOST_BUBBLE) / MOST_BUBBLE + 0.5)
    _warn(
        f"{schedule.name!r} on {schedule.num_devices} devices leaves them idle for "
        f"{program.bubble:.0%} of the loop with {schedule.num_microbatches} microbatches; with "
        f"about {max(enough, schedule.num_microbatches + 1)} of them it would be less than half"
    )


def warn_of_layout(layout: Layout) -> None:
    """Warns of stages of very different length."""
    counts = layout.layers_per_stage
    mean = layout.num_layers / len(counts)
    if layout.max_layers > MOST_IMBALANCE * mean and layout.max_layers > 1:
        _warn(
            f"the largest stage has {layout.max_layers} layers and the mean is {mean:.3g} "
            f"({', '.join(map(str, counts))}): all devices wait for it, and have room for as many; "
            "leave layers_per_stage out for the most even split"
        )


def warn_of_batch(spec: PipelineSpec, num_examples: int) -> None:
    """Warns of microbatches that are filled up with examples of weight 0."""
    rows, count = num_examples // spec.num_replicas, spec.num_microbatches
    fillers = -(-rows // count) * count - rows
    if fillers > MOST_FILLERS * rows:
        _warn(
            f"{rows} examples make {count} microbatches only with {fillers} fillers of weight 0, "
            f"which cost as much as real ones; use a multiple of {count} examples"
        )


def _warn(text: str) -> None:
    """Warns at the line of the user's own code from which all this was called."""
    if text in _said:
        return
    _said.add(text)
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(f"wasteful pipeline: {text}", WastefulWarning, stacklevel=depth)


def _is_ours(module: str) -> bool:
    """Whether a module is part of the library, or stands in between to check its types."""
    return module.partition(".")[0] in ("jaxpipe", "jaxtyping", "beartype")
