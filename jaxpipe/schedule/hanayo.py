"""Hanayo: waves of stages forth and back over the devices, without a second copy of the weights.

Liu, Cheng, Zhou, You: Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model
Training Efficiency (2023), arXiv 2308.15762.

Rule: with `w` waves the `2 w P` stages run forth and back over the devices `w` times. The paper
derives the order by folding Chimera's two directions into one; here list scheduling decides it
(`jaxpipe.schedule.greedy`), once with backwards first and once with forwards first, and the faster
of the two is kept. Two devices, one wave, two microbatches:

    device 0   0F0 0F1 3F0 3BW0 3F1 3BW1 0BW0 0BW1
    device 1   1F0 2F0 1F1 2F1 2BW0 1BW0 2BW1 1BW1

Sizes: any number of devices `P`, of waves `w` and of microbatches `M`.
Idle share for `M = P` and BW = 2 F: at most the paper's `(2 P - 2) / (3 P w + P - 1)`.
Memory: at most `2 w P` chunks' activations, which is 1F1B's `P` microbatches.
"""

from jaxpipe.schedule.greedy import greedy
from jaxpipe.schedule.retime import fastest
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.sizes import check_sizes


def hanayo(num_devices: int, num_microbatches: int, num_waves: int = 1) -> Schedule:
    """Hanayo.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> hanayo(2, 2, num_waves=2).placement.paths
        ((0, 1, 1, 0, 0, 1, 1, 0),)
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches, num_waves=num_waves)
    num_chunks = 2 * num_waves
    return fastest(
        [
            greedy(
                num_devices,
                num_microbatches,
                num_chunks=num_chunks,
                activation_cap=num_chunks * num_devices,
                forwards_first=forwards_first,
                name="hanayo",
            )
            for forwards_first in (False, True)
        ]
    )
