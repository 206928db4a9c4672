"""Ticks: drawn for small schedules, and checked by rule for all others."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import TickForm
from jaxpipe.lower.ticks import assign_ticks, lockstep_cost
from jaxpipe.schedule import Costs, Kind, Schedule, dependencies, from_csv, gpipe, one_f_one_b
from tests.schedule.strategies import legal_schedules


def draw(schedule: Schedule, form: TickForm) -> str:
    """A line per device, a column of four characters per tick and slot."""
    ticks = assign_ticks(schedule, form)
    num_slots, num_ticks = len(form.value), max(ticks.values()) + 1
    lines = [["."] * (num_slots * num_ticks) for _ in range(schedule.num_devices)]
    for action, tick in ticks.items():
        device, _ = schedule.positions[action]
        place = tick * num_slots + form.slot_of(action.kind)
        lines[device][place] = f"{action.kind}{action.microbatch}"
    return "\n".join("".join(f"{cell:<4}" for cell in line).rstrip() for line in lines)


def test_gpipe_with_one_action_a_tick():
    assert (
        draw(gpipe(3, 2), TickForm.SINGLE)
        == """\
F0  F1  .   .   .   .   BW0 BW1
.   F0  F1  .   .   BW0 BW1 .
.   .   F0  F1  BW0 BW1 .   ."""
    )


def test_1f1b_with_one_action_a_tick():
    assert (
        draw(one_f_one_b(2, 3), TickForm.SINGLE)
        == """\
F0  F1  .   BW0 F2  BW1 .   BW2
.   F0  BW0 F1  BW1 F2  BW2 ."""
    )


def test_1f1b_with_a_forward_and_a_backward_a_tick():
    """The picture in the module's docstring."""
    assert (
        draw(one_f_one_b(2, 3), TickForm.PAIRED)
        == """\
F0  .   F1  .   .   BW0 F2  BW1 .   .   .   BW2
.   .   F0  BW0 F1  BW1 .   .   F2  BW2 .   ."""
    )


@settings(deadline=None)
@given(legal_schedules(), st.sampled_from(list(TickForm)), st.integers(0, 2))
def test_every_action_runs_after_what_it_waits_for(schedule, form, hop_ticks):
    ticks = assign_ticks(schedule, form, hop_ticks=hop_ticks)
    moments = {action: (tick, form.slot_of(action.kind)) for action, tick in ticks.items()}
    for action, (tick, slot) in moments.items():
        for awaited in dependencies(schedule, action):
            if schedule.positions[awaited][0] == schedule.positions[action][0]:
                assert moments[awaited] < (tick, slot)
            else:
                assert ticks[awaited] + 1 + hop_ticks <= tick
    for device in range(schedule.num_devices):
        order = [moments[action] for action in schedule.actions(device)]
        assert order == sorted(set(order))  # the order of the row, and one action per slot
    assert set(ticks) == set(schedule.positions)


@settings(deadline=None)
@given(legal_schedules(), st.sampled_from(list(TickForm)))
def test_no_action_could_run_a_tick_earlier(schedule, form):
    ticks = assign_ticks(schedule, form)
    for device in range(schedule.num_devices):
        before = (-1, len(form.value))
        for action in schedule.actions(device):
            slot = form.slot_of(action.kind)
            earliest = before[0] + (slot <= before[1])
            for awaited in dependencies(schedule, action):
                if schedule.positions[awaited][0] != device:
                    earliest = max(earliest, ticks[awaited] + 1)
            assert ticks[action] == earliest
            before = (earliest, slot)


def test_every_kind_has_a_slot():
    for form in TickForm:
        assert Counter(form.slot_of(kind) for kind in Kind).keys() == set(range(len(form.value)))


def test_a_tick_lasts_as_long_as_its_busiest_device():
    schedule = gpipe(2, 1)  # F | F | BW | BW, one device each
    ticks = assign_ticks(schedule, TickForm.SINGLE)
    costs = Costs(forward=1.0, backward_input=1.3, backward_weight=0.7, hop=0.25)
    assert lockstep_cost(schedule, ticks, costs) == pytest.approx(2 * 1.0 + 2 * 2.0 + 3 * 0.25)


def test_a_circle_names_the_actions_that_wait():
    text = "# jaxpipe-schedule 1 devices=2 microbatches=1 placement=loop\n0BW0,0F0\n1F0,1BW0\n"
    schedule = from_csv(text, check=False)
    message = "can't be lowered: 0BW0, 1F0 wait for each other; jaxpipe.schedule.validate prints"
    with pytest.raises(ValueError, match=re.escape(message)):
        assign_ticks(schedule, TickForm.SINGLE)
