"""W into idle time. The golden orders of this transform are compared in test_goldens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.schedule import (
    Costs,
    Kind,
    fill_weights,
    make_schedule,
    peak_live,
    schedule_names,
    simulate,
    split_backward,
    validate,
)
from tests.schedule.strategies import costs

# beartype, which checks signatures in tests, looks at a random item of every sequence.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

SYNCHRONOUS = [name for name in schedule_names() if not name.startswith("pipedream")]


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(SYNCHRONOUS),
    num_devices=st.sampled_from([1, 2, 4]),
    costs=costs,
    extra=st.integers(0, 3),
)
def test_is_legal_under_the_cap_and_keeps_the_order_of_f_and_b(name, num_devices, costs, extra):
    base = split_backward(make_schedule(name, num_devices, 2 * num_devices))
    cap = max(peak_live(base, until=Kind.B)) + extra
    filled = fill_weights(base, activation_cap=cap, costs=costs)
    validate(filled, activation_cap=max(cap, 1))
    for device in range(num_devices):
        assert [a for a in filled.actions(device) if a.kind is not Kind.W] == [
            a for a in base.actions(device) if a.kind is not Kind.W
        ]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_is_no_slower_than_w_right_behind_b(name):
    base = make_schedule(name, 4, 8)
    assert simulate(fill_weights(base)).makespan <= simulate(split_backward(base)).makespan + 1e-9


def test_waits_for_an_action_that_is_about_to_become_ready():
    """A device that would begin a W just before its next B arrives delays all that follow."""
    schedule = make_schedule("1f1b", 4, 8)
    costs = Costs(forward=1.0, backward_input=1.0, backward_weight=1.0, hop=0.05)
    assert simulate(fill_weights(schedule, costs=costs), costs).makespan < 27 + 6 * 2 * 0.05 + 1e-9


def test_a_cap_below_what_f_and_b_need_is_refused():
    with pytest.raises(
        ValueError,
        match="activation_cap=3 is below the 4 activations that the forwards and backwards of "
        "schedule '1f1b' keep at once; use 4 or more",
    ):
        fill_weights(make_schedule("1f1b", 4, 8), activation_cap=3)


def test_schedules_that_update_on_their_way_are_refused():
    with pytest.raises(ValueError, match="'pipedream' updates weights within the step"):
        fill_weights(make_schedule("pipedream", 4, 8))
