"""Rows from a timetable: every device issues its actions in the order of their planned times.

Many papers define a schedule by when each action would run if all cost the same. Only the order
follows from such a plan. It never deadlocks as long as every action is planned later than what it
waits for, and ties are broken in one way everywhere.
"""

from collections.abc import Iterable

from jaxpipe.schedule.action import Action
from jaxpipe.schedule.placement import Placement


def rows_in_planned_order(
    planned: Iterable[tuple[float, Action]], *, placement: Placement, num_devices: int
) -> list[list[Action]]:
    """For every device, its actions by planned time.

    Args:
        planned: All actions, each with its planned time; those planned earlier in the sequence go
            first where times are equal.
        placement: Where the actions belong.
        num_devices: Devices in the pipeline.

    Example:
        >>> from jaxpipe.schedule.action import Kind
        >>> from jaxpipe.schedule.placement import loop_placement
        >>> planned = [(3.0, Action(Kind.BW, 0, 0)), (0.0, Action(Kind.F, 0, 0))]
        >>> rows = rows_in_planned_order(planned, placement=loop_placement(1), num_devices=1)
        >>> [str(action) for action in rows[0]]
        ['0F0', '0BW0']
    """
    rows: list[list[tuple[float, Action]]] = [[] for _ in range(num_devices)]
    for time, action in planned:
        rows[placement.device(action.stage, action.microbatch or 0)].append((time, action))
    return [[action for _, action in sorted(row, key=lambda entry: entry[0])] for row in rows]
