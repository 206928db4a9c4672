"""GPipe: all forwards, then all backwards.

Huang, Cheng, Bapna and others: GPipe: Efficient Training of Giant Neural Networks using Pipeline
Parallelism (2018), arXiv 1811.06965.

Rule: every device forwards the microbatches in ascending order and, after the last, backwards them
in the same order. Two devices, three microbatches (dots are idle time, a backward lasts two):

    device 0  F0 F1 F2 .........BW0-- BW1-- BW2--
    device 1  ...F0 F1 F2 BW0-- BW1-- BW2-- ......

Sizes: any number of devices and of microbatches.
Idle per device: `(P - 1) (F + BW)`, with `P` devices and `F`, `BW` the costs of a microbatch's
forward and backward on one device.
Memory: the activations of all microbatches of the step, on every device.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def gpipe(num_devices: int, num_microbatches: int) -> Schedule:
    """GPipe with one stage per device.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in gpipe(2, 2).actions(1)]
        ['1F0', '1F1', '1BW0', '1BW1']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    return Schedule.of_actions(
        [
            [
                Action(kind, stage=device, microbatch=microbatch)
                for kind in (Kind.F, Kind.BW)
                for microbatch in range(num_microbatches)
            ]
            for device in range(num_devices)
        ],
        name="gpipe",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=loop_placement(num_devices),
        backward=(Backward.FULL,) * num_devices,
    )
