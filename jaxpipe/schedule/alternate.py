"""One forward, one backward: how most schedules merge the two orders of a device.

warmup 2:   F F  F B F B F B  B B
"""

from collections.abc import Sequence

from jaxpipe.schedule.action import Action


def alternate(
    forwards: Sequence[Action], backwards: Sequence[Action], *, warmup: int
) -> list[Action]:
    """`warmup` forwards, then one forward and one backward in turn, then the other backwards.

    Example:
        >>> from jaxpipe.schedule.action import Kind
        >>> forwards = [Action(Kind.F, 0, microbatch) for microbatch in range(3)]
        >>> backwards = [Action(Kind.BW, 0, microbatch) for microbatch in range(3)]
        >>> [str(action) for action in alternate(forwards, backwards, warmup=1)]
        ['0F0', '0F1', '0BW0', '0F2', '0BW1', '0BW2']
    """
    warmup = min(warmup, len(forwards))
    steady = len(forwards) - warmup
    row = list(forwards[:warmup])
    for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
        row += [forward, backward]
    return row + list(backwards[steady:])
