"""Which buffer slot holds which value: interval colouring.

Every value that outlives its tick (a received activation, a stash, a received gradient) lies in a
slot of a pool from the moment it is written until it is read for the last time. Values whose
lifetimes do not meet may share a slot. Lifetimes on one device are intervals, and for intervals the
greedy colouring by start is optimal: a pool has as many slots as values are ever alive at once.
"""

import dataclasses
import heapq
from collections.abc import Hashable, Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """When a value is alive, in moments of the loop (both ends included).

    Attributes:
        value: What the value is called, unique within its pool.
        written: The moment it is written.
        last_read: The moment it is read for the last time; its slot is free after that.
    """

    value: Hashable
    written: int
    last_read: int


def allocate(lifetimes: Iterable[Lifetime]) -> tuple[dict[Any, int], int]:
    """A slot for every value, and how many slots that takes: the most values alive at once.

    Example:
        >>> allocate([Lifetime("a", 0, 3), Lifetime("b", 1, 2), Lifetime("c", 3, 4)])
        ({'a': 0, 'b': 1, 'c': 1}, 2)
    """
    slots: dict[Any, int] = {}
    taken: list[tuple[int, int]] = []  # (last read, slot), earliest first
    free: list[int] = []
    num_slots = 0
    for life in sorted(lifetimes, key=lambda life: (life.written, life.last_read)):
        while taken and taken[0][0] < life.written:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if free:
            slot = heapq.heappop(free)
        else:
            slot, num_slots = num_slots, num_slots + 1
        slots[life.value] = slot
        heapq.heappush(taken, (life.last_read, slot))
    return slots, num_slots
