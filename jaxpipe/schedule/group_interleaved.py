"""Interleaved 1F1B with small groups and half the warm-up: fewer activations, a longer ramp.

Wan, Qi, Huang, Li, Lin: PipeOffload: Improving Scalability of Pipeline Parallelism with Memory
Optimization (2025), arXiv 2503.01328.

Rule: as interleaved 1F1B, but the groups may be smaller than `P`, down to half of it, and device
`d` warms up with `P - 1 - d` forwards more than come before the first one of its last chunk: in
groups of `N` that is `(v - 1) N + (P - 1 - d)`. `staggered` has no groups: the chunks take turns
with every microbatch, each chunk one microbatch behind the one before.

Sizes: any number of devices `P`, of chunks `v` and of microbatches `M`; groups of
`N = ceil(P / 2)` to `P`. A last group that is not full is planned as if it were, and what it lacks
left out.
Memory, in chunks' activations: `min(v M, (v - 1) N + P - d)` on device `d`, against
`(v - 1) P + 2 (P - 1 - d) + 1` of interleaved 1F1B.
The shorter warm-up suits a split backward, where the next device waits for B alone. With W right
behind its B (`split_backward`), `P` = 4, `M` = 8, `v` = 2 and F = B = W it takes 56, 55, 54 chunks'
F in groups of 2, 3, 4, and with W in the idle time (`fill_weights`) 53, 52 and 51, below which no
order can get.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.alternate import alternate
from jaxpipe.schedule.groups import grouped_actions
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def group_interleaved(
    num_devices: int,
    num_microbatches: int,
    num_chunks: int = 2,
    group_size: int | None = None,
    staggered: bool = False,
) -> Schedule:
    """Interleaved 1F1B with small groups.

    Args:
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        num_chunks: Chunks of the model on every device.
        group_size: Microbatches that go through one chunk before the next chunk has its turn; by
            default half as many as devices, which keeps the fewest activations.
        staggered: Whether the chunks take turns with every microbatch instead, each chunk one
            microbatch behind the one before; there is no group then.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is too small, or the group larger than the number of devices.
    """
    smallest = -(-num_devices // 2)
    group_size = smallest if group_size is None else group_size
    check_sizes(
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        group_size=group_size,
    )
    if not smallest <= group_size <= num_devices:
        raise ValueError(
            f"group_size={group_size} is not between num_devices / 2 and num_devices="
            f"{num_devices}: smaller groups leave the pipeline half empty, larger ones keep more "
            f"activations for nothing; use {smallest} to {num_devices}"
        )
    rows = []
    for device in range(num_devices):
        stages = [chunk * num_devices + device for chunk in range(num_chunks)]
        if staggered:
            forwards = _staggered(Kind.F, stages, num_microbatches)
            backwards = _staggered(Kind.BW, stages[::-1], num_microbatches)
        else:
            groups = (group_size,) * -(-num_microbatches // group_size)
            forwards, backwards = (
                grouped_actions(
                    kind,
                    device=device,
                    num_devices=num_devices,
                    num_chunks=num_chunks,
                    groups=groups,
                )
                for kind in (Kind.F, Kind.BW)
            )
        first_of_last_chunk = forwards.index(Action(Kind.F, stages[-1], 0))
        row = alternate(forwards, backwards, warmup=first_of_last_chunk + num_devices - 1 - device)
        rows.append([action for action in row if action.microbatch in range(num_microbatches)])
    return Schedule.of_actions(
        rows,
        name="group_interleaved",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=loop_placement(num_devices, num_chunks),
        backward=(Backward.FULL,) * (num_devices * num_chunks),
    )


def _staggered(kind: Kind, stages: list[int], num_microbatches: int) -> list[Action]:
    """One action of every stage in turn; microbatches that do not exist keep their places."""
    return [
        Action(kind, stage, turn - place)
        for turn in range(num_microbatches + len(stages) - 1)
        for place, stage in enumerate(stages)
    ]
