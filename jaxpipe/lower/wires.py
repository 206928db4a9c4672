"""The wires of a placement: which devices send to which in every tick.

Messages cross between neighbouring stages. Seen from the devices, the way from a stage to the next
is a *shift* along the ring of devices, and there are few different ones:

    loop           0 1 2 3           activations shift by +1, gradients by -1
    v              0 1 2 3 3 2 1 0   activations shift by +1 and by -1, and so do gradients
    bidirectional  0 1 2 3, 3 2 1 0  the same

A wire is one shift of one kind of message: one `ppermute`. A device sends over every wire what it
made last, and the receivers' tables say which messages matter. Between two stages on one device
nothing is sent.
"""

import dataclasses
import itertools

from jaxpipe.lower.pools import Pool
from jaxpipe.schedule.placement import Placement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wire:
    """One kind of message between devices that lie equally far apart.

    Attributes:
        pool: What it carries: `Pool.ACTIVATION` or `Pool.GRADIENT`.
        pairs: `(source, target)` of every device that ever sends over it.
    """

    pool: Pool
    pairs: tuple[tuple[int, int], ...]


def wires_of(placement: Placement) -> tuple[Wire, ...]:
    """The wires of a placement, activations first, by ascending shift.

    Example:
        >>> from jaxpipe.schedule.placement import loop_placement, v_placement
        >>> [(str(wire.pool), wire.pairs) for wire in wires_of(loop_placement(3))]
        [('activation', ((0, 1), (1, 2))), ('gradient', ((1, 0), (2, 1)))]
        >>> [wire.pairs for wire in wires_of(v_placement(3))]
        [((0, 1), (1, 2)), ((1, 0), (2, 1)), ((0, 1), (1, 2)), ((1, 0), (2, 1))]
    """
    num_devices = 1 + max(max(path) for path in placement.paths)
    found: dict[tuple[Pool, int], set[tuple[int, int]]] = {}
    for source, target in _hops(placement):
        if source == target:
            continue
        for pool, pair in (
            (Pool.ACTIVATION, (source, target)),
            (Pool.GRADIENT, (target, source)),
        ):
            shift = (pair[1] - pair[0]) % num_devices
            found.setdefault((pool, shift), set()).add(pair)
    order = (Pool.ACTIVATION, Pool.GRADIENT)
    return tuple(
        Wire(pool=pool, pairs=tuple(sorted(found[pool, shift])))
        for pool, shift in sorted(found, key=lambda each: (order.index(each[0]), each[1]))
    )


def has_turns(placement: Placement) -> bool:
    """Whether a stage follows another one on the same device.

    Example:
        >>> from jaxpipe.schedule.placement import loop_placement, v_placement
        >>> has_turns(loop_placement(3)), has_turns(v_placement(3)), has_turns(loop_placement(1, 2))
        (False, True, True)
    """
    return any(source == target for source, target in _hops(placement))


def _hops(placement: Placement) -> list[tuple[int, int]]:
    """The devices of every two stages that follow each other."""
    return [hop for path in placement.paths for hop in itertools.pairwise(path)]
