"""The simulation behind W-fill and re-timing ends, whatever the order, the cap and the costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.schedule import Costs, Kind, make_schedule, peak_live, split_backward, validate
from jaxpipe.schedule.reorder import reorder
from tests.schedule.strategies import costs, legal_schedules

# beartype, which checks signatures in tests, looks at a random item of every sequence.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@settings(max_examples=60, deadline=None)
@given(
    schedule=legal_schedules(),
    costs=costs,
    extra=st.integers(0, 3),
    look_ahead=st.integers(0, 6),
    split=st.booleans(),
)
def test_no_device_gets_stuck_under_the_tightest_cap(schedule, costs, extra, look_ahead, split):
    if split:
        schedule = split_backward(schedule)
    cap = max(peak_live(schedule, until=Kind.B)) + extra
    reordered = reorder(schedule, costs=costs, activation_cap=cap, look_ahead=look_ahead)
    validate(reordered, activation_cap=max(1, cap))
    assert set(reordered.positions) == set(schedule.positions)


def test_costs_for_another_model_are_refused():
    with pytest.raises(ValueError, match="stage_shares must hold one number for each of the 4 st"):
        reorder(
            make_schedule("1f1b", 4, 8),
            costs=Costs(stage_shares=(1.0,)),
            activation_cap=None,
            look_ahead=0,
        )
