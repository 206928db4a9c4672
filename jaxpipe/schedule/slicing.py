"""Cut every microbatch of a schedule into token slices.

    F3         ->  F3.0 F3.1          slices ascend, since each attends to those before
    BW3        ->  BW3.1 BW3.0        and descend, since each needs the gradients of those after
    B3 ... W3  ->  B3.1 B3.0 ... W3.1 W3.0

GPipe becomes TeraPipe. (Seq1F1B is more than sliced 1F1B: it warms up with fewer slices.)
"""

import dataclasses

from jaxpipe.schedule.action import HEADS, Action, Cell, Kind
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.sizes import check_sizes


def slice_microbatches(schedule: Schedule, num_slices: int) -> Schedule:
    """Replaces every action by those of its slices, one after the other.

    Args:
        schedule: A schedule of whole microbatches.
        num_slices: Token slices per microbatch.

    Raises:
        TypeError: If `num_slices` is not an integer.
        ValueError: If it is below 1, or the schedule has slices, overlapping actions or heads.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> [str(action) for action in slice_microbatches(gpipe(1, 1), 2).actions(0)]
        ['0F0', '0F0.1', '0BW0.1', '0BW0']
    """
    check_sizes(num_slices=num_slices)
    if schedule.num_slices > 1:
        raise ValueError(
            f"schedule {schedule.name!r} has {schedule.num_slices} slices already; slice the "
            "schedule it was made of"
        )
    rows = []
    for row in schedule.rows:
        cells: list[Cell] = []
        for cell in row:
            action = next(iter(cell))
            if len(cell) > 1 or action.kind in HEADS:
                names = "+".join(map(str, cell))
                raise ValueError(
                    f"schedule {schedule.name!r} holds {names}, whose slices have no order of "
                    "their own; use a schedule without overlapping actions and heads"
                )
            cells += [(action,) for action in _slices(action, num_slices)]
        rows.append(tuple(cells))
    return dataclasses.replace(schedule, num_slices=num_slices, rows=tuple(rows))


def _slices(action: Action, num_slices: int) -> list[Action]:
    if action.kind is Kind.U:
        return [action]
    slices = range(num_slices) if action.kind is Kind.F else reversed(range(num_slices))
    return [action._replace(slice=slice_) for slice_ in slices]
