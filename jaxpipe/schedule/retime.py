"""Re-time a schedule under measured costs: let devices overtake what they would wait for.

An order that is perfect when F, B and W cost the same has idle time when they do not. Here every
device follows its row, but where the next action is not ready it may issue a later one that is,
as long as the activations of all F it overtakes still find room under the cap. W, where split,
fills what is left.
"""

from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.reorder import reorder
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.simulate import simulate


def retime(
    schedule: Schedule,
    costs: Costs | None = None,
    *,
    activation_cap: int | None = None,
    look_ahead: int = 4,
) -> Schedule:
    """The same actions in an order that suits the costs, or the schedule itself if that is faster.

    Args:
        schedule: Any synchronous schedule.
        costs: What the actions cost; by default F = B = W = R = 1.
        activation_cap: The most activations a device keeps from F to W; by default the most that
            any device of `schedule` keeps.
        look_ahead: How many cells of its row a device may overtake.

    Raises:
        ValueError: If the schedule updates weights on its way, the cap is below what its F and B
            need, or `look_ahead` is negative.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> from jaxpipe.schedule.split_backward import split_backward
        >>> split = split_backward(gpipe(4, 8))
        >>> simulate(split).makespan, simulate(retime(split)).makespan
        (30.0, 30.0)
    """
    if look_ahead < 0:
        raise ValueError(f"look_ahead={look_ahead} is negative; use 0 to overtake nothing")
    retimed = reorder(schedule, costs=costs, activation_cap=activation_cap, look_ahead=look_ahead)
    return fastest([retimed, schedule], costs)


def fastest(schedules: list[Schedule], costs: Costs | None = None) -> Schedule:
    """The schedule with the smallest makespan; the first of several."""
    return min(schedules, key=lambda schedule: simulate(schedule, costs).makespan)
