"""A time below which no order of the same actions on the same devices can end.

A device cannot start before the first result can have reached it, then has all its own work to do,
and after its last action whatever follows from that still has to run. So for every device

    makespan >= (least time before any of its actions) + (its work) + (least time after any of them)

where the times before and after are longest paths through the dependencies, as if there were
devices without end. The longest path by itself is a bound, too. For a one-direction schedule whose
W can fill the end this gives `(P - 1) F / v + M (F + B + W)`; with a fused backward, and `M` at
least `P`, `(P - 1) (F + BW) / v + M (F + BW)`.
"""

from jaxpipe.schedule.action import Action
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.walk import walk


def lower_bound(schedule: Schedule, costs: Costs | None = None) -> float:
    """The bound for the actions of `schedule`, in any order.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> lower_bound(gpipe(4, 8))
        33.0
    """
    costs = Costs() if costs is None else costs
    sizes = {"num_chunks": schedule.num_chunks, "num_slices": schedule.num_slices}
    visits = list(walk(schedule))
    positions = schedule.positions

    def hop(one: Action, other: Action) -> float:
        return costs.hop if costs.hop and positions[one][0] != positions[other][0] else 0.0

    # By the cell, since the actions of a cell start together.
    before: dict[Action, float] = {}
    duration: dict[Action, float] = {}
    for device, column, awaited in visits:
        cell = schedule.rows[device][column]
        arrivals = (before[other] + duration[other] + hop(other, cell[0]) for other in awaited)
        start = max(arrivals, default=0.0)
        for action in cell:
            before[action] = start
            duration[action] = costs.of(action, **sizes)
    after: dict[Action, float] = dict.fromkeys(before, 0.0)
    for device, column, awaited in reversed(visits):
        cell = schedule.rows[device][column]
        rest = max(duration[action] + after[action] for action in cell)
        for other in awaited:
            after[other] = max(after[other], rest + hop(other, cell[0]))

    bound = max(
        (before[action] + duration[action] + after[action] for action in before), default=0.0
    )
    for row in schedule.rows:
        if row:
            work = sum(costs.of_cell(cell, **sizes) for cell in row)
            first = min(before[action] for cell in row for action in cell)
            last = min(after[action] for cell in row for action in cell)
            bound = max(bound, first + work + last)
    return bound
