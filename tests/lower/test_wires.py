"""Which devices send to which."""

import pytest

from jaxpipe.lower import Pool, has_turns, wires_of
from jaxpipe.schedule import bidirectional_placement, loop_placement, v_placement
from jaxpipe.schedule.placement import Placement


@pytest.mark.parametrize(
    ("placement", "activations", "gradients", "turns"),
    [
        (loop_placement(1), [], [], False),
        (loop_placement(1, 3), [], [], True),
        (loop_placement(3), [[(0, 1), (1, 2)]], [[(1, 0), (2, 1)]], False),
        (
            loop_placement(3, 2),
            [[(0, 1), (1, 2), (2, 0)]],
            [[(0, 2), (1, 0), (2, 1)]],
            False,
        ),
        # On two devices there and back is the same shift: one wire.
        (v_placement(2), [[(0, 1), (1, 0)]], [[(0, 1), (1, 0)]], True),
        (bidirectional_placement(2, 2), [[(0, 1), (1, 0)]], [[(0, 1), (1, 0)]], False),
        (
            Placement(name="custom", paths=((0, 2, 1, 1),)),
            [[(0, 2), (2, 1)]],
            [[(1, 2), (2, 0)]],
            True,
        ),
    ],
    ids=["one", "one device", "loop", "chunks", "v", "bidirectional", "custom"],
)
def test_wires(placement, activations, gradients, turns):
    wires = wires_of(placement)
    found = {
        pool: [list(wire.pairs) for wire in wires if wire.pool is pool]
        for pool in (Pool.ACTIVATION, Pool.GRADIENT)
    }
    assert found == {Pool.ACTIVATION: activations, Pool.GRADIENT: gradients}
    assert has_turns(placement) == turns


def test_nobody_sends_or_receives_twice_over_a_wire():
    for placement in (v_placement(5, 3), bidirectional_placement(4, 8, 2), loop_placement(4, 3)):
        for wire in wires_of(placement):
            sources, targets = zip(*wire.pairs, strict=True)
            assert len(set(sources)) == len(set(targets)) == len(wire.pairs)
