"""TeraPipe: all token slices forward, then all backward.

Li, Zhuang, Guo, Zhuo, Zhang, Song, Stoica: TeraPipe: Token-Level Pipeline Parallelism for Training
Large-Scale Language Models (2021), arXiv 2102.07988.

Rule: every device forwards the slices of all microbatches in ascending order, then backwards the
microbatches ascending and the slices of each descending. Two devices, one microbatch, two slices:

    device 0   F0.0 F0.1 .    .     BW0.1-- BW0.0--
    device 1   .    F0.0 F0.1 BW0.1-- BW0.0--

Sizes: any number of devices `P`, of microbatches `M` and of slices `k`. The stages must be causal:
a slice depends on earlier slices only.
Time of the forward sweep with slices of costs `t_i` and hops of `c`:
`sum t_i + (P - 1) max t_i + (P - 1) c`; equal slices idle `(P - 1) (F + BW) / k`.
Memory: the activations of all microbatches of the step.
"""

from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.seq1f1b import sliced_actions
from jaxpipe.schedule.sizes import check_sizes


def terapipe(num_devices: int, num_microbatches: int, num_slices: int = 4) -> Schedule:
    """TeraPipe with one stage per device.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in terapipe(1, 1, 2).actions(0)]
        ['0F0', '0F0.1', '0BW0.1', '0BW0']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches, num_slices=num_slices)
    rows = []
    for device in range(num_devices):
        forwards, backwards = sliced_actions(device, num_microbatches, num_slices)
        rows.append(forwards + backwards)
    return Schedule.of_actions(
        rows,
        name="terapipe",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        num_slices=num_slices,
        placement=loop_placement(num_devices),
        backward=(Backward.FULL,) * num_devices,
    )
