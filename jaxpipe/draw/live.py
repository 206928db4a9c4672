"""How many activations a device keeps, over time."""

from jaxpipe.schedule.action import HEADS, Kind
from jaxpipe.schedule.schedule import Backward
from jaxpipe.schedule.simulate import Simulation


def live_steps(simulation: Simulation, device: int) -> list[tuple[float, int]]:
    """The times at which the number of kept activations changes, and the number from then on.

    An activation is kept from the start of its F to the end of its last use: its W or BW, or its B
    where the stage is frozen.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> from jaxpipe.schedule.simulate import simulate
        >>> live_steps(simulate(gpipe(1, 1)), 0)
        [(0.0, 1), (3.0, 0)]
    """
    backward = simulation.schedule.backward
    changes: list[tuple[float, int]] = []
    for action in simulation.schedule.actions(device):
        if action.kind in HEADS or backward[action.stage] is Backward.NONE:
            continue
        last = Kind.W if backward[action.stage] is Backward.FULL else Kind.B
        if action.kind is Kind.F:
            changes.append((simulation.starts[action], 1))
        elif action.kind is Kind.BW or action.kind is last:
            changes.append((simulation.ends[action], -1))
    steps: list[tuple[float, int]] = []
    live = 0
    # Where one ends as another begins, its place is free by then.
    for time, change in sorted(changes):
        live += change
        if steps and steps[-1][0] == time:
            steps.pop()
        steps.append((time, live))
    return steps
