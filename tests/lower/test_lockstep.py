"""What ticks cost, worked out by hand."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import Packing, TickForm, lower
from jaxpipe.lower.lockstep import lockstep_cost
from jaxpipe.lower.ticks import assign_ticks
from jaxpipe.schedule import (
    Costs,
    Kind,
    Schedule,
    dependencies,
    gpipe,
    make_schedule,
    one_f_one_b,
    simulate,
)
from tests.schedule.strategies import costs as some_costs
from tests.schedule.strategies import legal_schedules

COSTS = Costs(forward=1.0, backward_input=1.3, backward_weight=0.7, hop=0.25)


def cost(schedule: Schedule, form: TickForm, hop_ticks: int = 0, costs: Costs = COSTS) -> float:
    ticks = assign_ticks(schedule, form, hop_ticks=hop_ticks)
    return lockstep_cost(schedule, ticks, costs, hop_ticks=hop_ticks)


def test_a_message_that_nothing_hides_costs_a_hop():
    # F | F | BW | BW, one device each: one activation travels alone, and one gradient.
    assert cost(gpipe(2, 1), TickForm.SINGLE) == pytest.approx(2 * 1.0 + 2 * 2.0 + 2 * 0.25)


def test_messages_hide_behind_the_phases_beside_them():
    """In [F, BW] ticks only the ramps, with one kind of action, show their messages."""
    schedule = make_schedule("eager_1f1b", 2, 4)
    #   tick       0   1     2     3     4     5
    #   device 0   F   F     F BW  F BW    BW    BW
    #   device 1       F BW  F BW  F BW  F BW
    # Activations leave device 0 in ticks 0 to 3: in tick 0 no backward runs beside them, and in
    # tick 1 device 1 computes all the while. Gradients travel at the top of ticks 2 to 5: in tick 4
    # device 1 computes all the while, and in tick 5 nobody has a forward.
    assert max(assign_ticks(schedule, TickForm.PAIRED).values()) == 5
    busy = cost(schedule, TickForm.PAIRED, costs=dataclasses.replace(COSTS, hop=0.0))
    assert busy == pytest.approx(5 * 3.0)
    assert cost(schedule, TickForm.PAIRED) == pytest.approx(busy + 2 * 0.25)


def test_with_a_tick_to_travel_a_tick_lasts_at_least_a_hop():
    long_hop = Costs(forward=1.0, backward_input=1.0, backward_weight=1.0, hop=5.0)
    # F0 | travel | F0 | BW0 | travel | BW0: the hops last 5 where something is under way.
    assert cost(gpipe(2, 1), TickForm.SINGLE, 1, long_hop) == 1 + 5 + 1 + 2 + 5 + 2


def test_a_result_for_the_same_device_does_not_travel():
    schedule = make_schedule("interleaved_1f1b", 1, 2, num_chunks=2)
    assert cost(schedule, TickForm.SINGLE) == pytest.approx(2 * 3.0)


@pytest.mark.parametrize("num_devices", [2, 4, 6])
@pytest.mark.parametrize("num_microbatches", [1, 8, 12])
def test_eager_1f1b_in_paired_ticks(num_devices, num_microbatches):
    schedule = make_schedule("eager_1f1b", num_devices, num_microbatches)
    ticks = assign_ticks(schedule, TickForm.PAIRED)
    costs = Costs(forward=1.0, backward_input=1.3, backward_weight=0.7)
    if num_microbatches >= 2 * num_devices - 1:
        assert max(ticks.values()) + 1 == num_microbatches + 2 * (num_devices - 1)
    found = lockstep_cost(schedule, ticks, costs)
    assert found == pytest.approx((num_microbatches + num_devices - 1) * 3.0)


def test_1f1b_with_one_action_a_tick():
    assert cost(one_f_one_b(4, 8), TickForm.SINGLE, costs=Costs()) == 40


def test_where_sends_block_forwards_end_before_anything_else_begins():
    """Measured on two cores: 1F1B with one action a tick hardly overlaps, [F, BW] ticks do."""
    schedule = make_schedule("1f1b", 2, 16)
    single, paired = (
        lower(schedule, form=form, packing=Packing.EARLIEST, sends_block=True)
        for form in (TickForm.SINGLE, TickForm.PAIRED)
    )
    # In nearly all of the 34 ticks one device has an F and then the other a BW.
    assert single.num_ticks == 34
    assert single.cost == 95
    assert paired.cost == 72
    assert lower(schedule, sends_block=True).form is TickForm.PAIRED
    assert single.under(Costs()).cost == single.cost


def tick_by_tick(
    schedule: Schedule, ticks, costs: Costs, hop_ticks: int, *, sends_block: bool
) -> float:
    """The definition, in the plainest words; messages are found from who waits for them."""
    sizes = {"num_chunks": schedule.num_chunks, "num_slices": schedule.num_slices}
    travelling = {
        awaited
        for action in schedule.positions
        for awaited in dependencies(schedule, action)
        if schedule.positions[awaited][0] != schedule.positions[action][0]
    }
    total = 0.0
    for tick in range(max(ticks.values()) + 1):
        phases = {True: [0.0] * schedule.num_devices, False: [0.0] * schedule.num_devices}
        for action in schedule.positions:
            if ticks[action] == tick:
                device = schedule.positions[action][0]
                phases[action.kind is Kind.F][device] += costs.of(action, **sizes)
        made = [action for action in travelling if ticks[action] == tick]
        arriving = [action for action in travelling if ticks[action] == tick - 1]
        if hop_ticks and not sends_block:
            busy = max(map(sum, zip(*phases.values(), strict=True)))
            total += max([busy] + [costs.hop for _ in arriving])
            continue
        gradient = max([0.0] + [costs.hop for action in arriving if action.kind is not Kind.F])
        activation = max([0.0] + [costs.hop for action in made if action.kind is Kind.F])
        if sends_block:
            total += max([*phases[True], gradient]) + max([*phases[False], activation])
            continue
        total += max(
            max(forward, gradient) + max(later, activation)
            for forward, later in zip(phases[True], phases[False], strict=True)
        )
    return total


@settings(deadline=None)
@given(
    legal_schedules(),
    st.sampled_from(list(TickForm)),
    st.sampled_from(list(Packing)),
    st.integers(0, 1),
    some_costs,
    st.booleans(),
)
def test_the_cost_of_a_program_is_that_of_its_ticks(
    schedule, form, packing, hop_ticks, costs, sends_block
):
    options = {"form": form, "packing": packing, "hop_ticks": hop_ticks}
    program = lower(schedule, costs, **options, sends_block=sends_block)
    expected = tick_by_tick(schedule, program.ticks, costs, hop_ticks, sends_block=sends_block)
    assert program.cost == pytest.approx(expected)


@settings(deadline=None)
@given(
    legal_schedules(),
    st.sampled_from(list(TickForm)),
    st.sampled_from(list(Packing)),
    st.integers(0, 1),
    some_costs,
    st.booleans(),
)
def test_lockstep_is_never_faster_than_devices_that_run_freely(
    schedule, form, packing, hop_ticks, costs, sends_block
):
    """A hop beside an idle phase was once free while another device worked in that phase."""
    options = {"form": form, "packing": packing, "hop_ticks": hop_ticks}
    program = lower(schedule, costs, **options, sends_block=sends_block)
    assert program.cost >= simulate(schedule, costs).makespan * (1 - 1e-9)
