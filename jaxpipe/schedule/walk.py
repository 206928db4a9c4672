"""A legal order of all cells of a schedule, or the cycle that forbids one.

Every device issues its cells in the order of its row, each as soon as what it waits for has ended.
Walking the devices like that visits every cell once in an order that respects all dependencies; if
the walk stops before the end, the devices wait for each other in a cycle, and would for ever.

The walk keeps, for every action that somebody waits for, the devices that do, so that its time is
linear in the number of actions.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxpipe.schedule.action import Action
from jaxpipe.schedule.dependencies import dependencies
from jaxpipe.schedule.schedule import Schedule


class Visit(NamedTuple):
    """One cell, when its turn has come.

    Attributes:
        device: The device that issues it.
        column: Its place in the device's row.
        awaited: All that its actions have waited for.
    """

    device: int
    column: int
    awaited: list[Action]


class DeadlockError(ValueError):
    """Devices wait for each other in a cycle.

    Attributes:
        cycle: The actions in question: each waits for the next, directly or behind it in its row,
            and the last one for the first.
    """

    def __init__(self, schedule: Schedule, cycle: tuple[Action, ...]) -> None:
        self.cycle = cycle
        self.device, self.column = schedule.positions[cycle[0]]
        self.links = tuple(
            f"{action} (device {schedule.positions[action][0]}, column "
            f"{schedule.positions[action][1]})"
            for action in cycle
        )
        super().__init__(
            f"schedule {schedule.name!r} deadlocks: each of these waits for the next, and the last "
            f"one for the first: {', '.join(self.links)}; issue one of them earlier in its row"
        )


def walk(
    schedule: Schedule,
    awaited_by: Callable[[Schedule, Action], Sequence[Action]] = dependencies,
) -> Iterator[Visit]:
    """Visits every cell once, after everything it waits for.

    Args:
        schedule: What to walk.
        awaited_by: What an action waits for.

    Raises:
        DeadlockError: If no legal order exists.
        ValueError: If an action waits for one that the schedule does not have.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> [f"{visit.device}:{visit.column}" for visit in walk(gpipe(2, 1))]
        ['0:0', '1:0', '1:1', '0:1']
    """
    columns = [0] * schedule.num_devices
    ended: set[Action] = set()
    blocked_on: dict[int, Action] = {}
    waiting: dict[Action, list[int]] = collections.defaultdict(list)
    runnable = collections.deque(range(schedule.num_devices))
    while runnable:
        device = runnable.popleft()
        row = schedule.rows[device]
        while columns[device] < len(row):
            cell = row[columns[device]]
            awaited = [other for action in cell for other in awaited_by(schedule, action)]
            missing = next((other for other in awaited if other not in ended), None)
            if missing is not None:
                blocked_on[device] = missing
                waiting[missing].append(device)
                break
            yield Visit(device, columns[device], awaited)
            columns[device] += 1
            ended.update(cell)
            for action in cell:
                runnable.extend(waiting.pop(action, ()))
    stuck = [device for device, row in enumerate(schedule.rows) if columns[device] < len(row)]
    if stuck:
        raise DeadlockError(schedule, _cycle(schedule, stuck[0], columns, blocked_on))


def _cycle(
    schedule: Schedule, device: int, columns: list[int], blocked_on: dict[int, Action]
) -> tuple[Action, ...]:
    """Follows who waits for whom from a stuck device until a device comes up again."""
    seen: list[int] = []
    while device not in seen:
        seen.append(device)
        device = schedule.positions[blocked_on[device]][0]
    cycle: list[Action] = []
    for stuck in seen[seen.index(device) :]:
        head = schedule.rows[stuck][columns[stuck]][0]
        # What the device before waits for stands behind the head of this row.
        if cycle and cycle[-1] == head:
            cycle.pop()
        cycle += [head, blocked_on[stuck]]
    if cycle[-1] == cycle[0]:
        cycle.pop()
    return tuple(cycle)
