"""Forward only: inference and evaluation.

Rule: microbatches in ascending order; with several chunks they go in groups of `P`, all of a group
through one chunk before the next, so that a group is back at the first device when that is free.

Sizes: any number of devices `P`, of chunks `v` and of microbatches `M`.
Idle per device: `(P - 1) F / v` for `M` a multiple of `P`.
Memory: no activation is kept.
"""

from jaxpipe.schedule.action import Kind
from jaxpipe.schedule.groups import grouped_actions, groups_of
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def forward_only(num_devices: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Forwards alone.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in forward_only(2, 3, 2).actions(0)]
        ['0F0', '0F1', '2F0', '2F1', '0F2', '2F2']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches, num_chunks=num_chunks)
    groups = groups_of(num_microbatches, num_devices, smallest=1)
    return Schedule.of_actions(
        [
            grouped_actions(
                Kind.F,
                device=device,
                num_devices=num_devices,
                num_chunks=num_chunks,
                groups=groups,
            )
            for device in range(num_devices)
        ],
        name="forward_only",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=loop_placement(num_devices, num_chunks),
        backward=(Backward.NONE,) * (num_devices * num_chunks),
    )
