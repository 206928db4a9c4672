"""Looped breadth-first: all microbatches through one chunk before the next chunk has its turn.

Lamy-Poirier: Breadth-First Pipeline Parallelism (2022), arXiv 2211.05953.

Rule: stage `s` lies on device `s mod P`. Every device forwards all microbatches through its first
chunk, then all through its second, and so on; then it backwards the chunks in reverse, each with
the microbatches descending. Two devices, two chunks, two microbatches:

    device 0   0F0 0F1 2F0 2F1 2BW1 2BW0 0BW1 0BW0
    device 1   1F0 1F1 3F0 3F1 3BW1 3BW0 1BW1 1BW0

Each chunk is used in one run of forwards and one of backwards, so that weights sharded over
replicas are gathered, and their gradients reduced, once per chunk and not once per microbatch.

Sizes: any number of devices `P`, of chunks `v` and of microbatches `M`.
Idle per device: `(P - 1) (F + BW) / v` for `M >= P`, more below.
Memory: the activations of all microbatches of the step.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def looped_bfs(num_devices: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Looped breadth-first.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in looped_bfs(2, 2, 1).actions(0)]
        ['0F0', '0F1', '0BW1', '0BW0']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches, num_chunks=num_chunks)
    placement = loop_placement(num_devices, num_chunks)
    rows = []
    for device in range(num_devices):
        forwards = [
            Action(Kind.F, stage, microbatch)
            for stage in placement.stages_of(device)
            for microbatch in range(num_microbatches)
        ]
        rows.append(forwards + [action._replace(kind=Kind.BW) for action in reversed(forwards)])
    return Schedule.of_actions(
        rows,
        name="looped_bfs",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=placement,
        backward=(Backward.FULL,) * placement.num_stages,
    )
