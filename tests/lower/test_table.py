"""Tables, replayed step by step, and what cannot be one."""

import re

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from jaxpipe.lower import (
    BackwardPass,
    Column,
    Forward,
    Program,
    TableSizes,
    TickForm,
    encode,
    lower,
)
from jaxpipe.lower.ticks import in_phase_order
from jaxpipe.schedule import (
    insert_recompute,
    make_schedule,
    one_f_one_b,
    schedule_names,
    share_head,
)
from tests.lower.replay import replay
from tests.schedule.strategies import legal_schedules

ELSEWHERE = {"pipedream", "pipedream_2bw"}
forms, hops = st.sampled_from(list(TickForm)), st.integers(0, 1)


def check(program: Program, spare_ticks: int = 0) -> None:
    """The table runs every action of the schedule, in its order, on the right values."""
    schedule = program.schedule
    table = encode(program, program.num_ticks + spare_ticks)
    issued = replay(table, schedule, TableSizes.of(program))
    # Actions of one cell run in the order of the phases.
    assert issued == [
        [action for cell in row for action in in_phase_order(cell)] for row in schedule.rows
    ]


@settings(deadline=None)
@given(
    st.sampled_from(sorted(set(schedule_names()) - ELSEWHERE)),
    st.integers(1, 6),
    st.integers(1, 12),
    forms,
    hops,
    st.integers(0, 3),
)
def test_generated_schedules(name, num_devices, num_microbatches, form, hop_ticks, spare_ticks):
    try:
        schedule = make_schedule(name, num_devices, num_microbatches)
    except ValueError:
        reject()  # not for these sizes
    check(lower(schedule, form=form, hop_ticks=hop_ticks), spare_ticks)


@settings(deadline=None)
@given(legal_schedules(max_slices=3), forms, hops)
def test_any_legal_schedule(schedule, form, hop_ticks):
    """Any order on any placement, with B and W or BW, with R here and there, with frozen stages."""
    check(lower(schedule, form=form, hop_ticks=hop_ticks))


def test_a_table_to_read():
    """1F1B on two devices with two microbatches: one action a tick."""
    table = encode(lower(one_f_one_b(2, 2), form=TickForm.SINGLE))
    C = Column
    first_wire = len(Column)
    columns = {
        "F": (C.FORWARD, C.FORWARD_MICROBATCH, C.FORWARD_ACTIVATION, C.FORWARD_STASH),
        "loss": (C.FORWARD_GRADIENT,),
        "BW": (C.BACKWARD, C.BACKWARD_MICROBATCH, C.BACKWARD_GRADIENT, C.BACKWARD_STASH),
        "arrives": (first_wire, first_wire + 1),
    }

    def draw(row: np.ndarray) -> str:
        return "  ".join(
            f"{name} {' '.join(str(row[column]) for column in group)}"
            for name, group in columns.items()
        )

    text = "\n".join(
        f"{tick} {device}  {draw(table[tick, device])}"
        for tick in range(table.shape[0])
        for device in range(2)
    )
    # F: what, microbatch, slot read, slot filled. BW: what, microbatch, gradient read, stash read.
    # An activation arrives in the tick that makes it, a gradient in the next one.
    assert (
        text
        == """\
0 0  F 1 0 0 0  loss 0  BW 0 0 0 0  arrives 0 0
0 1  F 0 0 0 0  loss 0  BW 0 0 0 0  arrives 1 0
1 0  F 1 1 0 1  loss 0  BW 0 0 0 0  arrives 0 0
1 1  F 1 0 1 0  loss 1  BW 0 0 0 0  arrives 1 0
2 0  F 0 0 0 0  loss 0  BW 0 0 0 0  arrives 0 0
2 1  F 0 0 0 0  loss 0  BW 3 0 1 0  arrives 0 0
3 0  F 0 0 0 0  loss 0  BW 3 0 1 0  arrives 0 1
3 1  F 1 1 1 0  loss 1  BW 0 0 0 0  arrives 0 0
4 0  F 0 0 0 0  loss 0  BW 0 0 0 0  arrives 0 0
4 1  F 0 0 0 0  loss 0  BW 3 1 1 0  arrives 0 0
5 0  F 0 0 0 0  loss 0  BW 3 1 1 1  arrives 0 1
5 1  F 0 0 0 0  loss 0  BW 0 0 0 0  arrives 0 0"""
    )


def test_sizes_hold_and_join():
    small = TableSizes(num_ticks=5, num_activations=2, num_stashes=4, num_gradients=2)
    other = TableSizes(num_ticks=9, num_activations=2, num_stashes=1, num_gradients=2)
    both = TableSizes(num_ticks=9, num_activations=2, num_stashes=4, num_gradients=2)
    assert small.join(other) == other.join(small) == both
    assert both.holds(small)
    assert both.holds(other)
    assert not small.holds(other)
    assert not other.holds(small)


def test_sizes_of_1f1b():
    sizes = TableSizes.of(lower(one_f_one_b(4, 8)))
    found = (sizes.num_ticks, sizes.num_activations, sizes.num_stashes, sizes.num_gradients)
    assert found == (22, 2, 4, 2)


def test_programs_that_no_step_runs_together():
    split, whole = (TableSizes.of(lower(make_schedule(name, 2, 2))) for name in ("zb_h1", "1f1b"))
    assert not whole.holds(split)
    assert not split.can_join(whole)
    with pytest.raises(ValueError, match="no step runs both .* found is_split=True, False"):
        split.join(whole)


def test_variants_join():
    """Recomputing all and recomputing none: the step for both has either forward."""
    plain, again = (
        TableSizes.of(lower(schedule))
        for schedule in (one_f_one_b(2, 2), insert_recompute(one_f_one_b(2, 2)))
    )
    assert not plain.holds(again)
    assert not again.holds(plain)
    both = plain.join(again)
    assert both.holds(plain)
    assert both.holds(again)
    assert both.variants == {Forward.KEEPING, Forward.PASSING, BackwardPass.FULL}


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            lambda: make_schedule("pipedream", 2, 2),
            "the compiled loop runs F, R, BW, B and W, but 'pipedream' also has U; use a schedule "
            "without them, such as '1f1b' or 'zb_h1'",
        ),
        (
            lambda: share_head(one_f_one_b(2, 2)),
            "the compiled loop runs F, R, BW, B and W, but '1f1b' also has H; use a schedule",
        ),
    ],
    ids=["asynchronous", "shared head"],
)
def test_what_the_loop_does_not_run(schedule, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        encode(lower(schedule()))


def test_too_few_ticks():
    message = "'1f1b' takes 22 ticks, more than num_ticks=21"
    with pytest.raises(ValueError, match=message):
        encode(lower(one_f_one_b(4, 8)), 21)
