"""How many results travel between devices: activations after F, gradients after B."""

import dataclasses

from jaxpipe.schedule.action import Kind
from jaxpipe.schedule.schedule import Backward, Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Messages:
    """Counts of one step.

    Attributes:
        forward: For every device, the activations it sends to other devices.
        backward: For every device, the gradients it sends to other devices.
        local: For every device, the results it hands from one of its stages to the next one.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    local: tuple[int, ...]

    @property
    def total(self) -> int:
        """All that travels between devices."""
        return sum(self.forward) + sum(self.backward)


def count_messages(schedule: Schedule) -> Messages:
    """Counts what the devices send each other in one step of a schedule.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> count_messages(gpipe(3, 8))
        Messages(forward=(8, 8, 0), backward=(0, 8, 8), local=(0, 0, 0))
    """
    forward, backward, local = ([0] * schedule.num_devices for _ in range(3))
    placement = schedule.placement
    for device in range(schedule.num_devices):
        for action in schedule.actions(device):
            if action.kind is Kind.F and action.stage + 1 < schedule.num_stages:
                receiver, sent = action.stage + 1, forward
            elif (
                action.kind in (Kind.B, Kind.BW)
                and action.stage > 0
                and schedule.backward[action.stage - 1] is not Backward.NONE
            ):
                receiver, sent = action.stage - 1, backward
            else:
                continue
            if placement.device(receiver, action.microbatch or 0) == device:
                local[device] += 1
            else:
                sent[device] += 1
    return Messages(forward=tuple(forward), backward=tuple(backward), local=tuple(local))
