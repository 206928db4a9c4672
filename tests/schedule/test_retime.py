"""Overtaking under measured costs."""

import pytest
from hypothesis import given, settings

from jaxpipe.schedule import Kind, make_schedule, peak_live, retime, simulate, validate
from tests.schedule.strategies import costs, legal_schedules

# beartype, which checks signatures in tests, looks at a random item of every sequence.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@settings(max_examples=40, deadline=None)
@given(schedule=legal_schedules(), costs=costs)
def test_is_legal_no_slower_and_keeps_no_more(schedule, costs):
    retimed = retime(schedule, costs)
    validate(retimed)
    assert set(retimed.positions) == set(schedule.positions)
    assert simulate(retimed, costs).makespan <= simulate(schedule, costs).makespan
    assert max(peak_live(retimed, until=Kind.W)) <= max(peak_live(schedule, until=Kind.W))


def test_a_negative_look_ahead_is_refused():
    with pytest.raises(ValueError, match="look_ahead=-1 is negative; use 0 to overtake nothing"):
        retime(make_schedule("gpipe", 2, 2), look_ahead=-1)
