"""W-fill: keep the order of F and B, take W out of the backward and put it into idle time.

Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism (2023), arXiv 2401.10241, found that only B is
on the way of other devices, so that W can wait. Their ZB-H1 is what this transform makes of 1F1B;
it makes the like of any other schedule.

Rule: every device issues its F and B in the order it had. Whenever the next one has to wait, or an
F would exceed the cap on activations, it issues its oldest W instead; at the end, all that are
left. An activation counts from its F to its W. The cap is by default the largest number that any
device of the original keeps: devices that keep fewer have room to let W wait, which costs nothing
where all devices get equally large buffers.
"""

from jaxpipe.schedule.action import Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.live import peak_live
from jaxpipe.schedule.reorder import reorder
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.split_backward import split_backward


def fill_weights(
    schedule: Schedule, *, activation_cap: int | None = None, costs: Costs | None = None
) -> Schedule:
    """Moves every weight gradient into idle time.

    Args:
        schedule: Any synchronous schedule, with its backwards fused or split.
        activation_cap: The most activations a device keeps from F to W, in one stage's activation
            of one slice; by default the most that any device of `schedule` keeps.
        costs: What the actions cost; by default F = B = W = R = 1.

    Raises:
        ValueError: If the schedule updates weights on its way, or the cap is below what its F and B
            need.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> from jaxpipe.schedule.simulate import simulate
        >>> zero_bubble = fill_weights(one_f_one_b(4, 8))
        >>> simulate(one_f_one_b(4, 8)).makespan, simulate(zero_bubble).makespan
        (33.0, 27.0)
    """
    if activation_cap is None:
        activation_cap = max(peak_live(schedule, until=Kind.W))
    return reorder(
        split_backward(schedule), costs=costs, activation_cap=activation_cap, look_ahead=0
    )
