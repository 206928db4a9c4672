"""How many activations a device keeps at once: a question of order alone, not of time.

The activation of one microbatch (or slice) in one stage is alive from its F until its last use: the
B, and if the weight gradient is taken separately, the W. Both peaks matter, because what W needs is
often smaller than what B needs. The unit is one stage's activation of one slice: divide by the
chunks and slices to compare with schedules that have none.
"""

from typing import Literal

from jaxpipe.schedule.action import HEADS, Kind
from jaxpipe.schedule.schedule import Backward, Schedule


def peak_live(schedule: Schedule, *, until: Literal[Kind.B, Kind.W]) -> tuple[int, ...]:
    """For every device, the most activations alive at once.

    Args:
        schedule: In what order they come and go.
        until: The last use counted: `Kind.B` or `Kind.W`. A BW counts as both; a frozen stage has
            no W, so its B is the last use; and a stage without backward keeps nothing.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> peak_live(one_f_one_b(4, 8), until=Kind.B)
        (4, 3, 2, 1)
    """
    backward = schedule.backward
    peaks = []
    for row in schedule.rows:
        live = peak = 0
        for cell in row:
            # Within a cell the F needs its place before the backward beside it gives up its own.
            for kind, stage, *_ in cell:
                if kind is Kind.F and backward[stage] is not Backward.NONE:
                    live += 1
            peak = max(peak, live)
            for kind, stage, *_ in cell:
                if kind in HEADS:
                    continue
                last = until if backward[stage] is Backward.FULL else Kind.B
                if kind is Kind.BW or kind is last:
                    live -= 1
        peaks.append(peak)
    return tuple(peaks)
