"""Published times of the lockstep loop with one action per tick, P = 4, M = 8 and F = B = W = 1."""

import dataclasses

import pytest

from jaxpipe.lower import Packing, TickForm, lower
from jaxpipe.schedule import (
    Costs,
    Schedule,
    fill_weights,
    insert_recompute,
    make_schedule,
    split_backward,
)
from tests.schedule.goldens import golden, golden_names, summary


def unit(schedule: Schedule, backward_input: float = 1.0) -> Costs:
    """One per action, however small its share."""
    pieces = float(schedule.num_chunks * schedule.num_slices)
    return Costs(
        forward=pieces,
        backward_input=backward_input * pieces,
        backward_weight=pieces,
        recompute=pieces,
    )


def cost(schedule: Schedule, backward_input: float = 1.0) -> float:
    return lower(schedule, unit(schedule, backward_input), form=TickForm.SINGLE).cost


# Where jaxpp issues an F and a BW as one task, `golden` writes them one after the other.
COMPARED = [name for name in golden_names() if not name.startswith(("jaxpp_Int", "jaxpp_Kimi"))]


@pytest.mark.parametrize("name", COMPARED)
def test_golden_ticks_and_costs(name):
    schedule, expected = golden(name), summary()[name]
    program = lower(schedule, unit(schedule), form=TickForm.SINGLE, packing=Packing.EARLIEST)
    assert program.num_ticks == int(expected["scan_ticks"])
    assert program.cost == pytest.approx(float(expected["scan_barrier_cost"]))
    # The second pair of numbers takes apart what is issued together, too.
    rows = tuple(tuple((action,) for cell in row for action in cell) for row in schedule.rows)
    split = split_backward(dataclasses.replace(schedule, rows=rows))
    program = lower(split, unit(split), form=TickForm.SINGLE, packing=Packing.EARLIEST)
    assert program.num_ticks == int(expected["scan_ticks_split"])
    assert program.cost == pytest.approx(float(expected["scan_barrier_cost_split"]))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (make_schedule("1f1b", 4, 8), 40),
        (make_schedule("interleaved_1f1b", 4, 8), 68),
        (split_backward(make_schedule("1f1b", 4, 8)), 30),
        (make_schedule("zb1p", 4, 8), 27),
        (split_backward(make_schedule("interleaved_1f1b", 4, 8)), 54),
        (fill_weights(make_schedule("interleaved_1f1b", 4, 8)), 51),
        (insert_recompute(make_schedule("zb1p", 4, 8)), 35),
    ],
    ids=["1f1b", "interleaved", "1f1b-split", "zb1p", "interleaved-split", "w-fill", "recompute"],
)
def test_published_costs(schedule, expected):
    assert cost(schedule) == pytest.approx(expected)


def test_recompute_fused_into_b_stretches_the_ticks():
    assert cost(make_schedule("zb1p", 4, 8), backward_input=2.0) == 49
