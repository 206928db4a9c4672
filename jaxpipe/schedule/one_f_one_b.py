"""1F1B: as few forwards ahead as keep the pipeline busy, then one backward for each forward.

Narayanan, Phanishayee, Shi, Chen, Zaharia: Memory-Efficient Pipeline-Parallel DNN Training (2020),
arXiv 2006.09503 (there called PipeDream-Flush; also DAPPLE, Fan and others, arXiv 2007.01045).

Rule: device `d` warms up with `min(M, P - d)` forwards, then alternates one backward and one
forward until the forwards end, then drains the backwards. Two devices, three microbatches (dots are
idle time, a backward lasts two):

    device 0  F0 F1 ......BW0-- F2 BW1-- ...BW2--
    device 1  ...F0 BW0-- F1 BW1-- F2 BW2-- ......

Sizes: any number of devices `P` and of microbatches `M`, also `M < P`.
Idle per device: `(P - 1) (F + BW)`, with `F`, `BW` the costs of a microbatch's forward and backward
on one device: the same as GPipe.
Memory: the activations of `min(M, P - d)` microbatches on device `d`, whatever `M`.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.alternate import alternate
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def one_f_one_b(num_devices: int, num_microbatches: int) -> Schedule:
    """1F1B with one stage per device.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in one_f_one_b(2, 3).actions(0)]
        ['0F0', '0F1', '0BW0', '0F2', '0BW1', '0BW2']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    rows = []
    for device in range(num_devices):
        forwards, backwards = (
            [Action(kind, device, microbatch) for microbatch in range(num_microbatches)]
            for kind in (Kind.F, Kind.BW)
        )
        rows.append(alternate(forwards, backwards, warmup=num_devices - 1 - device))
    return Schedule.of_actions(
        rows,
        name="1f1b",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=loop_placement(num_devices),
        backward=(Backward.FULL,) * num_devices,
    )
