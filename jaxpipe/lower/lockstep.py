"""How long the lockstep loop takes: tick by tick, under a cost model.

In a tick every device works through its phases, and the next tick begins when the slowest device is
ready. Messages of one tick travel beside some phases (`jaxpipe.runtime.engine`):

    hop_ticks=0   gradients of the tick before travel beside F, and what F makes travels beside the
                  phases after it; on a device where these are shorter than the hop, the hop counts
    hop_ticks=1   all messages travel beside the whole tick: it lasts no shorter than a hop

A result that is used on the same device does not travel.

Where sends block, as in XLA for CPUs, a device that has reached a message does nothing until all
have reached it. Messages stand before and behind the forwards of a tick, so then the forwards of
all devices end before any other phase begins.
"""

import numpy as np

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Schedule


def lockstep_cost(
    schedule: Schedule,
    ticks: dict[Action, int],
    costs: Costs,
    *,
    hop_ticks: int = 0,
    sends_block: bool = False,
) -> float:
    """Time of the whole loop.

    Args:
        schedule: What runs.
        ticks: The tick of every action.
        costs: What actions and hops cost.
        hop_ticks: Ticks that a message travels beyond the tick border.
        sends_block: Whether devices wait for messages instead of computing beside them.

    Example:
        >>> from jaxpipe.lower.ticks import TickForm, assign_ticks
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> one = gpipe(2, 1)  # F | F | BW | BW, one device each
        >>> lockstep_cost(one, assign_ticks(one, TickForm.SINGLE), Costs(hop=0.25))
        6.5
    """
    num_ticks = max(ticks.values()) + 1
    forward = np.zeros((num_ticks, schedule.num_devices))
    later = np.zeros_like(forward)
    # Whether, in a tick, some forward or some backward makes a message.
    makes_activation, makes_gradient = np.zeros((2, num_ticks), bool)
    sizes = {"num_chunks": schedule.num_chunks, "num_slices": schedule.num_slices}
    for action, tick in ticks.items():
        device = schedule.positions[action][0]
        phases = forward if action.kind is Kind.F else later
        phases[tick, device] += costs.of(action, **sizes)
        if costs.hop and action.kind in (Kind.F, Kind.B, Kind.BW):
            is_forward = action.kind is Kind.F
            if _leaves(schedule, action, device, is_forward=is_forward):
                (makes_activation if is_forward else makes_gradient)[tick] = True
    gradient_under_way = np.concatenate([[False], makes_gradient[:-1]])
    if hop_ticks and not sends_block:
        busy = (forward + later).max(axis=1)
        any_under_way = gradient_under_way | np.concatenate([[False], makes_activation[:-1]])
        return float(np.where(any_under_way, np.maximum(busy, costs.hop), busy).sum())
    # A device with an idle phase waits for the hop, however long others work beside it.
    if costs.hop:
        forward[gradient_under_way] = np.maximum(forward[gradient_under_way], costs.hop)
        later[makes_activation] = np.maximum(later[makes_activation], costs.hop)
    if sends_block:
        return float(forward.max(axis=1).sum() + later.max(axis=1).sum())
    return float((forward + later).max(axis=1).sum())


def _leaves(schedule: Schedule, action: Action, device: int, *, is_forward: bool) -> bool:
    """Whether another device waits for what the action makes."""
    role, step = ("F", 1) if is_forward else ("B", -1)
    receiver = schedule.by_role.get((role, action.stage + step, action.microbatch, action.slice))
    return receiver is not None and schedule.positions[receiver][0] != device
