"""Seq1F1B: 1F1B over token slices instead of whole microbatches.

Sun, Zhao, Han and others: Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language
Model Training (2024), arXiv 2406.03488.

Rule: a microbatch is cut into `k` slices. Forwards go through the microbatches, and through the
slices of each, in ascending order; backwards take microbatches first in, first out, and the slices
of one microbatch last in, first out, because the gradient of a slice needs those of all later ones
(they have attended to it). Device `d` warms up with `P - d - 2 + k` forwards, then alternates one
forward and one backward. Two devices, two microbatches, two slices:

    device 0   F0.0 F0.1 F1.0 BW0.1 F1.1 BW0.0 BW1.1 BW1.0
    device 1   F0.0 F0.1 BW0.1 F1.0 BW0.0 F1.1 BW1.1 BW1.0

Sizes: any number of devices `P`, of microbatches `M` and of slices `k`. The stages must be causal:
a slice depends on earlier slices only.
Idle per device with slices of equal cost: `(P - 1) (F + BW) / k`. (Later slices attend to more;
equal cost needs shorter slices at the end.)
Memory, in slices' activations: `P + k - 1 - d` on device `d` but the last one at least `k`, which
is `(P + k - 1) / k` microbatches on the first device.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.alternate import alternate
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def seq1f1b(num_devices: int, num_microbatches: int, num_slices: int = 2) -> Schedule:
    """Seq1F1B with one stage per device.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in seq1f1b(1, 2, 2).actions(0)]
        ['0F0', '0F0.1', '0BW0.1', '0F1', '0BW0', '0F1.1', '0BW1.1', '0BW1']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches, num_slices=num_slices)
    rows = []
    for device in range(num_devices):
        forwards, backwards = sliced_actions(device, num_microbatches, num_slices)
        rows.append(alternate(forwards, backwards, warmup=num_devices - device - 2 + num_slices))
    return Schedule.of_actions(
        rows,
        name="seq1f1b",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        num_slices=num_slices,
        placement=loop_placement(num_devices),
        backward=(Backward.FULL,) * num_devices,
    )


def sliced_actions(
    stage: int, num_microbatches: int, num_slices: int
) -> tuple[list[Action], list[Action]]:
    """The forwards of a stage with slices ascending, and its backwards with slices descending."""
    forwards = [
        Action(Kind.F, stage, microbatch, slice_)
        for microbatch in range(num_microbatches)
        for slice_ in range(num_slices)
    ]
    backwards = [
        Action(Kind.BW, stage, microbatch, slice_)
        for microbatch in range(num_microbatches)
        for slice_ in reversed(range(num_slices))
    ]
    return forwards, backwards
