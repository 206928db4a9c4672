"""Eager 1F1B: 1F1B with twice the warm-up, so that every result has a tick to travel.

Zhuang, Zheng, Li and others: On Optimizing the Communication of Model Parallelism (2022),
arXiv 2211.05322; the large warm-up of DAPPLE (Fan and others, arXiv 2007.01045) is the same.

Rule: device `d` warms up with `min(M, 2 (P - d) - 1)` forwards, then alternates one backward and
one forward, then drains the backwards. Two devices, four microbatches (dots are idle time):

    device 0  F0 F1 F2 ...BW0-- F3 BW1-- ...BW2-- ...BW3--
    device 1  ...F0 BW0-- F1 BW1-- F2 BW2-- F3 BW3-- ......

Sizes: any number of devices `P` and of microbatches `M`.
Idle per device: `(P - 1) (F + BW)`, like 1F1B. What it buys: a neighbour's result is needed one
action later, so that sending it hides behind that action, and a lockstep loop of [F, BW] ticks
keeps both halves of every tick busy.
Memory: the activations of `min(M, 2 (P - d) - 1)` microbatches on device `d`.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.alternate import alternate
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def eager_one_f_one_b(num_devices: int, num_microbatches: int) -> Schedule:
    """Eager 1F1B with one stage per device.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in eager_one_f_one_b(2, 4).actions(0)]
        ['0F0', '0F1', '0F2', '0BW0', '0F3', '0BW1', '0BW2', '0BW3']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    rows = []
    for device in range(num_devices):
        forwards, backwards = (
            [Action(kind, device, microbatch) for microbatch in range(num_microbatches)]
            for kind in (Kind.F, Kind.BW)
        )
        rows.append(alternate(forwards, backwards, warmup=2 * (num_devices - 1 - device)))
    return Schedule.of_actions(
        rows,
        name="eager_1f1b",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=loop_placement(num_devices),
        backward=(Backward.FULL,) * num_devices,
    )
