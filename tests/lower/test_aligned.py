"""Ticks in which long actions meet long ones."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import Packing, TickForm, lower, phase_of
from jaxpipe.lower.aligned import align_ticks
from jaxpipe.schedule import Costs, dependencies, make_schedule
from tests.schedule.strategies import costs, legal_schedules

REAL = Costs(forward=1.0, backward_input=1.3, backward_weight=0.7)


@settings(deadline=None)
@given(legal_schedules(), st.sampled_from(list(TickForm)), st.integers(0, 1), costs)
def test_any_packing_is_a_legal_execution(schedule, form, hop_ticks, costs):
    ticks = align_ticks(schedule, form, costs, hop_ticks=hop_ticks)
    assert set(ticks) == set(schedule.positions)
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


@settings(deadline=None, max_examples=25)  # each lowers some 30 programs
@given(legal_schedules(), costs)
def test_the_cheapest_is_chosen(schedule, costs):
    chosen = lower(schedule, costs)
    for form, packing, hop_ticks in itertools.product(TickForm, Packing, (0, 1)):
        one = lower(schedule, costs, form=form, packing=packing, hop_ticks=hop_ticks)
        assert chosen.cost <= one.cost * (1 + 1e-9)
    assert chosen.cost >= chosen.ideal_cost * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "form", "gain"),
    [
        ("1f1b", TickForm.PAIRED, 0.2),
        ("hanayo", TickForm.SINGLE, 0.12),  # short actions first
        ("zbv", TickForm.PAIRED, 0.26),  # less held back
        ("dualpipe_v", TickForm.FULL, 0.09),
    ],
    ids=["1f1b", "hanayo", "zbv", "dualpipe_v"],
)
def test_where_holding_back_pays(name, form, gain):
    earliest, aligned = (
        lower(make_schedule(name, 4, 16), REAL, form=form, packing=packing).cost
        for packing in (Packing.EARLIEST, Packing.ALIGNED)
    )
    assert aligned == pytest.approx(earliest * (1 - gain), rel=0.01)


def test_where_it_does_not():
    """It looks one tick ahead: a forward now can be worth more than a full tick."""
    earliest, aligned = (
        lower(make_schedule("eager_1f1b", 4, 16), REAL, form=TickForm.PAIRED, packing=packing).cost
        for packing in (Packing.EARLIEST, Packing.ALIGNED)
    )
    assert aligned > earliest


def test_large_schedules_are_packed_as_early_as_possible():
    program = lower(make_schedule("1f1b", 64, 256))
    assert program.packing is Packing.EARLIEST
