"""Chimera and BitPipe: two pipelines in opposite directions fill each other's bubbles.

Li, Hoefler: Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines
(2021), arXiv 2107.06925. Wu, Chen, Yu: BitPipe: Bidirectional Interleaved Pipeline
Parallelism for Accelerating Large Models Training (2024), arXiv 2410.19367: the same with every
direction laid out as a V of `2 P` stages.

Rule: every device holds its stages of both directions. The microbatches go in units of `P`, half
of each in one direction and half in the other. With all actions of equal length, microbatch `i` of
its direction's half runs F of stage `s` at `s + 2 i` and BW at `2 S - 1 - s + 2 i`, `S` being the
number of stages, and the next unit starts `2 S` later. Two devices, two microbatches, the second
from the other end:

    device 0   0F0 1F1 1BW1 0BW0
    device 1   0F1 1F0 1BW0 0BW1

Sizes: any number of devices `P` and of microbatches `M`. The two directions interlock without
collisions for even `P` and `M` a multiple of `P` only; elsewhere the order is as legal and idles
more. Microbatches of the second direction are numbered from `M / 2`, rounded up.
Idle share of Chimera for even `P` and `M = P`: `(P - 2) / (2 M + P - 2)` when BW costs as much as
F, `(P - 2) / (1.5 M + P - 2)` when it costs twice as much.
Memory: between `P / 2 + 1` and `P` microbatches' activations, and the weights twice.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.placement import bidirectional_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes
from jaxpipe.schedule.timetable import rows_in_planned_order


def chimera(num_devices: int, num_microbatches: int) -> Schedule:
    """Chimera: every stage on two devices, one per direction.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in chimera(2, 2).actions(0)]
        ['0F0', '1F1', '1BW1', '0BW0']
    """
    return _bidirectional("chimera", num_devices, num_microbatches, num_chunks=1)


def bitpipe(num_devices: int, num_microbatches: int) -> Schedule:
    """BitPipe: Chimera with two chunks per device and direction, each direction a V.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in bitpipe(2, 2).actions(0)]
        ['0F0', '1F1', '2F1', '3F0', '3BW0', '2BW1', '1BW1', '0BW0']
    """
    return _bidirectional("bitpipe", num_devices, num_microbatches, num_chunks=2)


def _bidirectional(
    name: str, num_devices: int, num_microbatches: int, *, num_chunks: int
) -> Schedule:
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    placement = bidirectional_placement(num_devices, num_microbatches, num_chunks)
    num_stages = placement.num_stages
    half = max(1, num_devices // 2)
    planned = []
    for microbatch in range(num_microbatches):
        first = placement.path_starts[placement.path_of(microbatch)]
        unit, place = divmod(microbatch - first, half)
        start = 2 * num_stages * unit + 2 * place
        for stage in range(num_stages):
            planned += [
                (float(start + stage), Action(Kind.F, stage, microbatch)),
                (float(start + 2 * num_stages - 1 - stage), Action(Kind.BW, stage, microbatch)),
            ]
    return Schedule.of_actions(
        rows_in_planned_order(planned, placement=placement, num_devices=num_devices),
        name=name,
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=placement,
        backward=(Backward.FULL,) * num_stages,
    )
