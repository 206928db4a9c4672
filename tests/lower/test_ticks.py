"""Ticks: drawn for small schedules, and checked by rule for all others."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import TickForm
from jaxpipe.lower.ticks import assign_ticks, in_phase_order, phase_of
from jaxpipe.schedule import (
    Action,
    Kind,
    Schedule,
    dependencies,
    from_csv,
    gpipe,
    insert_recompute,
    make_schedule,
    one_f_one_b,
)
from tests.schedule.strategies import legal_schedules

SINGLE = TickForm.SINGLE


def draw(schedule: Schedule, form: TickForm) -> str:
    """A line per device, a column of four characters per tick and phase in use."""
    ticks = assign_ticks(schedule, form)
    used = sorted({phase_of(action.kind) for action in ticks})
    phases = [used[0]] if form is SINGLE else used
    num_ticks = max(ticks.values()) + 1
    lines = [["."] * (len(phases) * num_ticks) for _ in range(schedule.num_devices)]
    for action, tick in ticks.items():
        device, _ = schedule.positions[action]
        phase = 0 if form is SINGLE else phases.index(phase_of(action.kind))
        lines[device][tick * len(phases) + phase] = f"{action.kind}{action.microbatch}"
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
    moments = {action: (tick, phase_of(action.kind)) for action, tick in ticks.items()}
    for action, (tick, phase) in moments.items():
        for awaited in dependencies(schedule, action):
            if schedule.positions[awaited][0] == schedule.positions[action][0]:
                assert moments[awaited] < (tick, phase)
            else:
                assert ticks[awaited] + 1 + hop_ticks <= tick
    for device in range(schedule.num_devices):
        order = [moments[action] for action in schedule.actions(device)]
        assert order == sorted(set(order))  # the order of the row, one action per phase
    assert set(ticks) == set(schedule.positions)


@settings(deadline=None)
@given(legal_schedules(), st.sampled_from(list(TickForm)))
def test_no_action_could_run_a_tick_earlier(schedule, form):
    ticks = assign_ticks(schedule, form)
    for device in range(schedule.num_devices):
        tick, before = 0, ()
        for action in schedule.actions(device):
            earliest = tick if form.admits(before, (action,)) else tick + 1
            for awaited in dependencies(schedule, action):
                if schedule.positions[awaited][0] != device:
                    earliest = max(earliest, ticks[awaited] + 1)
            assert ticks[action] == earliest
            before = (*before, action) if earliest == tick else (action,)
            tick = earliest


def test_what_shares_a_tick_with_what():
    f, other_f = Action(Kind.F, 0, 1), Action(Kind.F, 0, 2)
    r, other_r, bw, b, w = (
        Action(kind, 0, microbatch)
        for kind, microbatch in (
            (Kind.R, 0),
            (Kind.R, 5),
            (Kind.BW, 0),
            (Kind.B, 0),
            (Kind.W, 0),
        )
    )
    runs = [(f, bw), (f, r), (r, bw), (other_r, bw), (f, r, bw)]
    runs += [(b, w), (f, r, b, w), (f, other_f), (bw, f)]
    allowed = {
        form: [
            "+".join(str(action.kind) for action in run)
            for run in runs
            if all(form.admits(run[:place], run[place : place + 1]) for place in range(len(run)))
        ]
        for form in TickForm
    }
    assert allowed == {
        TickForm.SINGLE: [],
        TickForm.JOINED: ["R+BW"],  # of one microbatch
        TickForm.PAIRED: ["F+BW", "F+R", "R+BW", "F+R+BW"],
        TickForm.FULL: ["F+BW", "F+R", "R+BW", "R+BW", "F+R+BW", "B+W", "F+R+B+W"],
    }


def test_a_recomputation_and_its_backward_share_a_tick():
    schedule = insert_recompute(one_f_one_b(2, 3))
    ticks = assign_ticks(schedule, TickForm.JOINED)
    assert max(ticks.values()) == max(assign_ticks(one_f_one_b(2, 3), SINGLE).values())


def test_a_whole_backward_takes_the_phase_of_w_as_well():
    """Once a BW and another microbatch's W shared a tick, and one of the W was lost."""
    whole, other = Action(Kind.BW, 0, 1), Action(Kind.W, 0, 0)
    assert not TickForm.FULL.admits((whole,), (other,))


def test_actions_of_a_cell_share_a_tick_in_every_form():
    schedule = make_schedule("dualpipe", 4, 8)
    for form in TickForm:
        ticks = assign_ticks(schedule, form)
        cells = [cell for row in schedule.rows for cell in row]
        assert all(len({ticks[action] for action in cell}) == 1 for cell in cells)


def test_a_cell_with_two_forwards():
    message = (
        "a cell may hold one forward, one recomputation, one backward and one W, since all of it "
        "runs in one tick; found 0F1 beside 0F2: put them into cells of their own"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        in_phase_order((Action(Kind.F, 0, 1), Action(Kind.B, 0, 0), Action(Kind.F, 0, 2)))


def test_a_circle_names_the_actions_that_wait():
    text = "# jaxpipe-schedule 1 devices=2 microbatches=1 placement=loop\n0BW0,0F0\n1F0,1BW0\n"
    schedule = from_csv(text, check=False)
    message = "can't be lowered: 0BW0, 1F0 wait for each other; jaxpipe.schedule.validate prints"
    with pytest.raises(ValueError, match=re.escape(message)):
        assign_ticks(schedule, TickForm.SINGLE)
