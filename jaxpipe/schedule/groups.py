"""The order of interleaved schedules: groups of microbatches go through all chunks in turn.

With two chunks and groups of two microbatches, the device that holds stages 0 and 4 forwards

    0F0 0F1 4F0 4F1   0F2 0F3 4F2 4F3   ...

and backwards the same groups with the chunks reversed.
"""

from collections.abc import Sequence

from jaxpipe.schedule.action import Action, Kind


def grouped_actions(
    kind: Kind, *, device: int, num_devices: int, num_chunks: int, groups: Sequence[int]
) -> list[Action]:
    """All actions of one kind on one device of a loop placement.

    Args:
        kind: F ascends through the chunks, anything else descends.
        device: The device.
        num_devices: Devices in the pipeline.
        num_chunks: Chunks per device.
        groups: The number of microbatches of each group.

    Example:
        >>> actions = grouped_actions(
        ...     Kind.BW, device=0, num_devices=2, num_chunks=2, groups=(2, 1)
        ... )
        >>> [str(action) for action in actions]
        ['2BW0', '2BW1', '0BW0', '0BW1', '2BW2', '0BW2']
    """
    chunks = range(num_chunks) if kind is Kind.F else reversed(range(num_chunks))
    stages = [chunk * num_devices + device for chunk in chunks]
    actions = []
    first = 0
    for size in groups:
        actions += [
            Action(kind, stage, microbatch)
            for stage in stages
            for microbatch in range(first, first + size)
        ]
        first += size
    return actions


def even_groups(num_microbatches: int, *, smallest: int) -> tuple[int, ...]:
    """As many groups of at least `smallest` as there can be, their sizes as equal as can be.

    Example:
        >>> even_groups(11, smallest=4), even_groups(3, smallest=4)
        ((6, 5), (3,))
    """
    num_groups = max(1, num_microbatches // smallest)
    size, larger = divmod(num_microbatches, num_groups)
    return (size + 1,) * larger + (size,) * (num_groups - larger)


def groups_of(num_microbatches: int, size: int, *, smallest: int) -> tuple[int, ...]:
    """Groups of one size; what is left over is the last group, or joins the first if too small.

    It joins the first because warm-ups are made for that one, and no later one may be larger.

    Example:
        >>> groups_of(8, 3, smallest=2), groups_of(7, 3, smallest=2)
        ((3, 3, 2), (4, 3))
    """
    full, rest = divmod(num_microbatches, size)
    groups = (size,) * full
    if rest == 0:
        return groups
    if rest < smallest and groups:
        return (size + rest, *groups[1:])
    return (*groups, rest)
