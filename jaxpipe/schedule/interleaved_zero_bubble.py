"""Interleaved zero bubble: several chunks per device, and weight gradients that wait.

The loop counterpart of ZB-H1, as in torch's `ScheduleInterleavedZeroBubble`; for one chunk it is
ZB-H1 of Qi, Wan, Huang, Lin (2023), arXiv 2401.10241.

Rule: as interleaved 1F1B, but device `d` warms up with `(v - 1) N + (P - 1 - d)` forwards, since no
device has to wait for another's W. Behind its B number `d` and every later one, device `d` issues
the oldest W that waits, and the rest at the end.

Sizes: any number of devices `P`, of chunks `v` and of microbatches `M`, in groups as those of
interleaved 1F1B.
Idle per device with F = B = W and `M` a multiple of `P`: `(P - 1) F / v`, which is the least
possible within one step.
Memory, in chunks' activations from F to W: `(v - 1) N + P`, equal on all devices.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.alternate import alternate
from jaxpipe.schedule.groups import even_groups, grouped_actions
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def interleaved_zero_bubble(
    num_devices: int, num_microbatches: int, num_chunks: int = 2
) -> Schedule:
    """Interleaved zero bubble.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in interleaved_zero_bubble(2, 2, 1).actions(1)]
        ['1F0', '1B0', '1F1', '1B1', '1W0', '1W1']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches, num_chunks=num_chunks)
    groups = even_groups(num_microbatches, smallest=num_devices)
    rows = []
    for device in range(num_devices):
        forwards, backwards = (
            grouped_actions(
                kind,
                device=device,
                num_devices=num_devices,
                num_chunks=num_chunks,
                groups=groups,
            )
            for kind in (Kind.F, Kind.B)
        )
        warmup = (num_chunks - 1) * groups[0] + num_devices - 1 - device
        rows.append(_with_weights(alternate(forwards, backwards, warmup=warmup), delay=device))
    return Schedule.of_actions(
        rows,
        name="interleaved_zb",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=loop_placement(num_devices, num_chunks),
        backward=(Backward.FULL,) * (num_devices * num_chunks),
    )


def _with_weights(row: list[Action], *, delay: int) -> list[Action]:
    """Adds the W of every B, each `delay` B later."""
    weights = [action._replace(kind=Kind.W) for action in row if action.kind is Kind.B]
    filled: list[Action] = []
    num_backwards = num_weights = 0
    for action in row:
        filled.append(action)
        if action.kind is Kind.B:
            if num_backwards >= delay:
                filled.append(weights[num_weights])
                num_weights += 1
            num_backwards += 1
    return filled + weights[num_weights:]
