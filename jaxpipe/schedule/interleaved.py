"""Interleaved 1F1B: every device holds several chunks of the model, which shortens the ramps.

Narayanan, Shoeybi, Casper and others: Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM (2021), arXiv 2104.04473.

Rule: stage `s` lies on device `s mod P`. Microbatches go in groups: all of a group through the
first chunk, then all through the second, and so on. Device `d` warms up with
`(v - 1) N + 2 (P - 1 - d)` forwards, `N` being the size of the first group, then alternates one
forward and one backward. Two devices, two chunks, two microbatches (dots are idle time, stages
are named, a backward lasts two):

    device 0  0F0 0F1 2F0 2F1 ........2BW0--- ....2BW1--- 0BW0--- 0BW1---
    device 1  ....1F0 1F1 3F0 3BW0--- 3F1 3BW1--- 1BW0--- 1BW1--- ........

Sizes: any number of devices `P`, of chunks `v` and of microbatches `M`. By default the groups are
`M // P` (at least one), as equal as can be, so that none but a single one is smaller than `P`: a
smaller group would reach the last device's first chunk after that device wants its second one, and
all would wait. With `group_size=N` of at least `P` there are groups of `N`, and what is left over
joins the first one unless it fills a group of `P` by itself.

Idle per device: `(P - 1) (F + BW) / v` for `M` a multiple of `P`.
Memory, in chunks' activations: `min(v M, (v - 1) N + 2 (P - 1 - d) + 1)`.
"""

from jaxpipe.schedule.action import Kind
from jaxpipe.schedule.alternate import alternate
from jaxpipe.schedule.groups import even_groups, grouped_actions, groups_of
from jaxpipe.schedule.placement import loop_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def interleaved_one_f_one_b(
    num_devices: int,
    num_microbatches: int,
    num_chunks: int = 2,
    group_size: int | None = None,
    extra_warmup: int = 0,
) -> Schedule:
    """Interleaved 1F1B.

    Args:
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        num_chunks: Chunks of the model on every device.
        group_size: Microbatches that go through one chunk before the next chunk has its turn; by
            default about as many as devices. Larger groups keep more activations and give messages
            more time.
        extra_warmup: Forwards ahead of the rule. One lets each forward run beside the backward that
            follows it in the rule, instead of before it.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is too small.

    Example:
        >>> schedule = interleaved_one_f_one_b(2, 2)
        >>> [str(action) for action in schedule.actions(1)]
        ['1F0', '1F1', '3F0', '3BW0', '3F1', '3BW1', '1BW0', '1BW1']
    """
    check_sizes(
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
    )
    if extra_warmup < 0:
        raise ValueError(
            f"extra_warmup={extra_warmup} is negative; use extra_warmup=0 for the rule as it is"
        )
    groups = _groups(num_devices, num_microbatches, group_size)
    rows = []
    for device in range(num_devices):
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
        warmup = (num_chunks - 1) * groups[0] + 2 * (num_devices - 1 - device) + extra_warmup
        rows.append(alternate(forwards, backwards, warmup=warmup))
    return Schedule.of_actions(
        rows,
        name="interleaved_1f1b",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=loop_placement(num_devices, num_chunks),
        backward=(Backward.FULL,) * (num_devices * num_chunks),
    )


def _groups(num_devices: int, num_microbatches: int, group_size: int | None) -> tuple[int, ...]:
    if group_size is None:
        return even_groups(num_microbatches, smallest=num_devices)
    check_sizes(group_size=group_size)
    if group_size < num_devices:
        raise ValueError(
            f"group_size={group_size} is smaller than num_devices={num_devices}: a group would "
            "leave the first chunk before it fills the pipeline, and devices would wait for it; "
            f"use group_size={num_devices} or more, or schedule 'group_interleaved'"
        )
    return groups_of(num_microbatches, group_size, smallest=num_devices)
