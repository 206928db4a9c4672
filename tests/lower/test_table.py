"""Tables, replayed step by step, and what cannot be one."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import Column, Program, TableSizes, TickForm, encode, lower
from jaxpipe.schedule import insert_recompute, make_schedule, one_f_one_b
from tests.lower.replay import replay
from tests.schedule.strategies import with_order

ONE_CHUNK = ("gpipe", "1f1b", "eager_1f1b", "zb_h1", "zb_h2", "zb2p", "zb1p5")
forms = st.sampled_from(list(TickForm))


def check(program: Program, spare_ticks: int = 0) -> None:
    """The table runs every action of the schedule, in its order, on the right values."""
    schedule = program.schedule
    table = encode(program, program.num_ticks + spare_ticks)
    issued = replay(table, schedule, TableSizes.of(program))
    assert issued == [list(schedule.actions(device)) for device in range(schedule.num_devices)]


@settings(deadline=None)
@given(st.sampled_from(ONE_CHUNK), st.integers(1, 8), st.integers(1, 16), forms, st.integers(0, 3))
def test_generated_schedules(name, num_devices, num_microbatches, form, spare_ticks):
    check(lower(make_schedule(name, num_devices, num_microbatches), form=form), spare_ticks)


@settings(deadline=None)
@given(
    st.sampled_from(["interleaved_1f1b", "interleaved_zb"]),
    st.integers(2, 5),
    st.integers(1, 10),
    st.integers(1, 3),
    forms,
)
def test_schedules_with_chunks(name, num_devices, num_microbatches, num_chunks, form):
    schedule = make_schedule(name, num_devices, num_microbatches, num_chunks=num_chunks)
    check(lower(schedule, form=form))


@settings(deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 2),
    forms,
    st.randoms(use_true_random=False),
)
def test_any_legal_order(num_devices, num_microbatches, num_chunks, form, random):
    name, options = ("gpipe", {})
    if num_chunks > 1 and num_devices > 1:
        name, options = ("interleaved_1f1b", {"num_chunks": num_chunks})
    ordered = make_schedule(name, num_devices, num_microbatches, **options)
    check(lower(with_order(ordered, random.shuffle), form=form))


def test_a_table_to_read():
    """1F1B on two devices with two microbatches: one action a tick."""
    table = encode(lower(one_f_one_b(2, 2), form=TickForm.SINGLE))
    C = Column
    columns = {
        "arrives": (C.ARRIVING_ACTIVATION, C.ARRIVING_GRADIENT),
        "F": (C.FORWARD, C.FORWARD_MICROBATCH, C.FORWARD_ACTIVATION, C.FORWARD_STASH),
        "loss": (C.FORWARD_GRADIENT,),
        "BW": (C.BACKWARD, C.BACKWARD_MICROBATCH, C.BACKWARD_GRADIENT, C.BACKWARD_STASH),
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
    # F: runs, microbatch, slot read, slot filled. BW: runs, microbatch, gradient read, stash read.
    assert (
        text
        == """\
0 0  arrives 0 0  F 1 0 0 0  loss 0  BW 0 0 0 0
0 1  arrives 0 0  F 0 0 0 0  loss 0  BW 0 0 0 0
1 0  arrives 0 0  F 1 1 0 1  loss 0  BW 0 0 0 0
1 1  arrives 1 0  F 1 0 1 0  loss 1  BW 0 0 0 0
2 0  arrives 0 0  F 0 0 0 0  loss 0  BW 0 0 0 0
2 1  arrives 1 0  F 0 0 0 0  loss 0  BW 1 0 1 0
3 0  arrives 0 1  F 0 0 0 0  loss 0  BW 1 0 1 0
3 1  arrives 0 0  F 1 1 1 0  loss 1  BW 0 0 0 0
4 0  arrives 0 0  F 0 0 0 0  loss 0  BW 0 0 0 0
4 1  arrives 0 0  F 0 0 0 0  loss 0  BW 1 1 1 0
5 0  arrives 0 1  F 0 0 0 0  loss 0  BW 1 1 1 1
5 1  arrives 0 0  F 0 0 0 0  loss 0  BW 0 0 0 0"""
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


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            lambda: insert_recompute(one_f_one_b(2, 2)),
            "the compiled loop runs F, B, W and BW, but '1f1b' also has R; use a schedule without "
            "them, such as '1f1b' or 'zb_h1'",
        ),
        (
            lambda: make_schedule("seq1f1b", 2, 2),
            "the compiled loop runs whole microbatches, but 'seq1f1b' cuts each into 2 slices; use "
            "a schedule without slices, such as '1f1b'",
        ),
        (
            lambda: make_schedule("1f1b_v", 2, 2),
            "the compiled loop sends each result to the next device in the ring, but placement 'v' "
            "puts stages on ((0, 1, 1, 0),); use a schedule whose stages lie on (0, 1, 0, 1)",
        ),
        (
            lambda: make_schedule("chimera", 2, 2),
            "but placement 'bidirectional' puts stages on ((0, 1), (1, 0)); use a schedule whose",
        ),
        (
            lambda: make_schedule("interleaved_1f1b", 1, 2, num_chunks=2),
            "the compiled loop sends each result to the next device in the ring",
        ),
        (
            lambda: make_schedule("forward_only", 2, 2),
            "the compiled loop runs the full backward of every stage, but 'forward_only' has none, "
            "or not all of it, in stages [0, 1]; use a schedule that trains every stage",
        ),
    ],
    ids=["recompute", "slices", "v", "bidirectional", "chunks on one device", "forward only"],
)
def test_what_the_loop_does_not_run(schedule, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        encode(lower(schedule()))


def test_messages_that_travel_longer():
    """Once encoded without complaint: the loop would have read the next message instead."""
    message = (
        "the compiled loop receives a message in the tick after it was made, but this program of "
        "'1f1b' lets it travel 1 tick(s) longer; lower it with hop_ticks=0"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        encode(lower(one_f_one_b(2, 2), hop_ticks=1))


def test_too_few_ticks():
    message = "'1f1b' takes 22 ticks, more than num_ticks=21"
    with pytest.raises(ValueError, match=message):
        encode(lower(one_f_one_b(4, 8)), 21)
