"""Take a backward apart into B and W, and put the two together again.

    BW3        ->  B3 W3       split_backward
    B3 W3 F5   ->  BW3 F5      merge_backward
    B3 F5 W3   ->  BW3 F5      undivide_backward

For merging, a W that stands behind other actions than its own B was put there on purpose and is
left alone; to undivide takes every W back, to see what splitting is worth.
"""

import dataclasses

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.schedule import Schedule


def split_backward(schedule: Schedule) -> Schedule:
    """Replaces every BW by its B and, right behind, its W.

    Of a BW issued together with other actions, the W gets a cell of its own behind theirs.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> [str(action) for action in split_backward(gpipe(1, 1)).actions(0)]
        ['0F0', '0B0', '0W0']
    """
    rows = []
    for row in schedule.rows:
        cells: list[Cell] = []
        for cell in row:
            cells.append(tuple(_input_part(action) for action in cell))
            cells += [(action._replace(kind=Kind.W),) for action in cell if action.kind is Kind.BW]
        rows.append(tuple(cells))
    return dataclasses.replace(schedule, rows=tuple(rows))


def merge_backward(schedule: Schedule) -> Schedule:
    """Replaces every B whose W is its device's next action by a BW.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> merge_backward(split_backward(gpipe(2, 2))) == gpipe(2, 2)
        True
    """
    rows = []
    for row in schedule.rows:
        cells: list[Cell] = []
        for cell in row:
            action = cell[0]
            before = cells[-1] if cells else ()
            if len(cell) == 1 and action.kind is Kind.W:
                input_part = action._replace(kind=Kind.B)
                if input_part in before:
                    fused = action._replace(kind=Kind.BW)
                    cells[-1] = tuple(fused if other == input_part else other for other in before)
                    continue
            cells.append(cell)
        rows.append(tuple(cells))
    return dataclasses.replace(schedule, rows=tuple(rows))


def undivide_backward(schedule: Schedule) -> Schedule:
    """Replaces every B that has a W by a BW, and drops all W.

    Example:
        >>> from jaxpipe.schedule.zero_bubble import zb_h1
        >>> [str(action) for action in undivide_backward(zb_h1(2, 2)).actions(1)]
        ['1F0', '1BW0', '1F1', '1BW1']
    """
    rows = []
    for row in schedule.rows:
        cells = (
            tuple(_whole(schedule, each) for each in cell if each.kind is not Kind.W)
            for cell in row
        )
        rows.append(tuple(cell for cell in cells if cell))
    return dataclasses.replace(schedule, rows=tuple(rows))


def _whole(schedule: Schedule, action: Action) -> Action:
    """BW for a B that has a W."""
    role = ("W", action.stage, action.microbatch, action.slice)
    is_divided = action.kind is Kind.B and role in schedule.by_role
    return action._replace(kind=Kind.BW) if is_divided else action


def _input_part(action: Action) -> Action:
    return action._replace(kind=Kind.B) if action.kind is Kind.BW else action
