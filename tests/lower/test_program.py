"""Predictions of lowered schedules, against published and simulated numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import Pool, TickForm, lower
from jaxpipe.schedule import (
    Costs,
    Kind,
    Schedule,
    fill_weights,
    gpipe,
    insert_recompute,
    make_schedule,
    one_f_one_b,
    peak_live,
    split_backward,
)
from tests.schedule.strategies import legal_schedules


def interleaved() -> Schedule:
    return make_schedule("interleaved_1f1b", 4, 8, num_chunks=2)


# P = 4, M = 8, F = B = W = 1 per action, one action a tick; a tick lasts as long as its longest.
@pytest.mark.parametrize(
    ("schedule", "cost"),
    [
        (lambda: one_f_one_b(4, 8), 40),
        (lambda: split_backward(one_f_one_b(4, 8)), 30),
        (lambda: make_schedule("zb1p", 4, 8), 27),
        (interleaved, 68),
        (lambda: split_backward(interleaved()), 54),
        (lambda: fill_weights(interleaved()), 51),
        (lambda: insert_recompute(make_schedule("zb1p", 4, 8)), 35),
    ],
    ids=["1f1b", "1f1b split", "zb1p", "interleaved", "split", "filled", "zb1p recompute"],
)
def test_cost_of_the_loop_with_one_action_a_tick(schedule, cost):
    lowered = lower(schedule(), form=TickForm.SINGLE)
    # A device's share is 1; a chunk of two costs half of it.
    assert lowered.cost * schedule().num_chunks == cost


def test_recomputation_fused_into_b():
    """B then costs 2, and the tick of every B with it: 49 instead of 35 in ticks of its own."""
    fused = lower(make_schedule("zb1p", 4, 8), Costs(backward_input=2.0), form=TickForm.SINGLE)
    assert fused.cost == 49


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
@pytest.mark.parametrize("num_microbatches", [8, 11, 32])
def test_eager_1f1b_in_pairs_is_as_short_as_1f1b_without_lockstep(num_devices, num_microbatches):
    """(M + P - 1) (F + BW), at 2 (P - d) - 1 activations on device d."""
    program = lower(
        make_schedule("eager_1f1b", num_devices, num_microbatches), form=TickForm.PAIRED
    )
    assert program.cost == (num_microbatches + num_devices - 1) * 3
    assert program.num_slots[Pool.STASH] == tuple(
        min(num_microbatches, 2 * (num_devices - device) - 1) for device in range(num_devices)
    )


@pytest.mark.parametrize(("num_devices", "num_microbatches"), [(1, 1), (4, 8), (4, 2), (8, 32)])
def test_gpipe(num_devices, num_microbatches):
    """Idle (P - 1) (F + BW) on every device, as in free running."""
    program = lower(gpipe(num_devices, num_microbatches))
    assert program.cost == (num_microbatches + num_devices - 1) * 3
    assert program.ideal_cost == num_microbatches * 3
    idle = (num_devices - 1) / (num_microbatches + num_devices - 1)
    assert program.bubble == pytest.approx(idle)
    assert program.num_slots[Pool.STASH] == (num_microbatches,) * num_devices


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 24), st.sampled_from(list(TickForm)))
def test_memory_of_1f1b_is_bounded_by_the_stages_and_not_the_microbatches(devices, micro, form):
    """min(M, P - d) stashes on device d, and single slots for messages."""
    program = lower(one_f_one_b(devices, micro), form=form)
    stashes = tuple(min(micro, devices - device) for device in range(devices))
    assert program.num_slots[Pool.STASH] == stashes
    assert program.max_slots(Pool.ACTIVATION) <= 1
    assert program.max_slots(Pool.GRADIENT) == 1


@settings(deadline=None)
@given(legal_schedules(), st.sampled_from(list(TickForm)))
def test_stash_slots_are_the_activations_alive(schedule, form):
    program = lower(schedule, form=form)
    if any(action.kind is Kind.R for action in program.ticks):
        return  # then the input waits instead, and the stash is short-lived
    no_stash = (0,) * schedule.num_devices
    live = peak_live(schedule, until=Kind.B)
    assert program.num_slots.get(Pool.STASH, no_stash) == live
    for pool, values in program.slots.items():
        used = [0] * schedule.num_devices
        for value, slot in values.items():
            device, _ = schedule.positions[value]
            used[device] = max(used[device], slot + 1)
        assert program.num_slots[pool] == tuple(used)


def test_the_form_follows_from_the_costs():
    """Where ticks are free the cheaper form wins; between equals, fewer stashes, then ticks."""
    assert lower(one_f_one_b(4, 8)).form is TickForm.SINGLE  # 40 against 48
    assert lower(make_schedule("eager_1f1b", 4, 8)).form is TickForm.PAIRED  # 33 against 40
    assert lower(gpipe(4, 8)).form is TickForm.PAIRED  # equal costs, fewer ticks
    # With hops that cost more than a whole action, fewer ticks are cheaper.
    assert lower(one_f_one_b(4, 8), Costs(hop=3.0)).form is TickForm.PAIRED


@pytest.mark.parametrize("hop_ticks", [0, 1, 2])
def test_messages_that_travel_longer_make_the_ramp_longer(hop_ticks):
    program = lower(gpipe(4, 8), form=TickForm.SINGLE, hop_ticks=hop_ticks)
    assert program.num_ticks == 2 * (8 + 3 * (1 + hop_ticks))


def test_a_pool_that_is_not_needed_has_no_slots():
    assert lower(one_f_one_b(4, 8)).max_slots(Pool.WEIGHT_STASH) == 0
