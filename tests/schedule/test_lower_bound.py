"""The time below which no order can end."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.schedule import Costs, Schedule, from_csv, gpipe, lower_bound, simulate
from tests.schedule.strategies import legal_schedules, with_order

# beartype, which checks signatures in tests, looks at a random item of every sequence.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@pytest.mark.parametrize(("devices", "microbatches"), [(1, 1), (2, 8), (4, 8), (4, 2), (8, 3)])
def test_a_fused_backward_cannot_fill_the_end(devices, microbatches):
    costs = Costs(forward=1.0, backward_input=1.25, backward_weight=0.5)
    assert lower_bound(gpipe(devices, microbatches), costs) == pytest.approx(
        (devices - 1 + microbatches) * 2.75
    )


def test_hops_count():
    assert lower_bound(gpipe(3, 1), Costs(hop=0.5)) == 9 + 4 * 0.5


def test_a_weight_gradient_of_its_own_can():
    schedule = from_csv("0F0,0F1,0B0,0W0,0B1,0W1\n1F0,1B0,1F1,1B1,1W0,1W1\n")
    # (P - 1) F + M (F + B + W)
    assert lower_bound(schedule) == 7
    assert simulate(schedule).makespan == 7


@settings(max_examples=40, deadline=None)
@given(schedule=legal_schedules(), order=st.randoms(use_true_random=False))
def test_depends_on_the_actions_and_not_on_their_order(schedule: Schedule, order):
    assert lower_bound(with_order(schedule, order.shuffle)) == pytest.approx(lower_bound(schedule))


def test_is_reached_by_the_best_of_all_orders():
    """Two devices, two microbatches, split backward: every order of every row is tried."""
    rows = (
        ["0F0", "0F1", "0B0", "0W0", "0B1", "0W1"],
        ["1F0", "1F1", "1B0", "1W0", "1B1", "1W1"],
    )
    best, bound = float("inf"), 0.0
    orders = [[order for order in itertools.permutations(row) if _sensible(order)] for row in rows]
    for first, second in itertools.product(*orders):
        schedule = from_csv(f"{','.join(first)}\n{','.join(second)}\n", check=False)
        try:
            simulation = simulate(schedule)
        except ValueError:  # a deadlock
            continue
        best, bound = min(best, simulation.makespan), simulation.lower_bound
    assert best == bound == 7


def _sensible(order: tuple[str, ...]) -> bool:
    """Microbatch 0 first, and F before B before W."""
    place = {text[1:]: index for index, text in enumerate(order)}
    return (
        place["F0"] < place["B0"] < place["W0"]
        and place["F1"] < place["B1"] < place["W1"]
        and place["F0"] < place["F1"]
        and place["B0"] < place["B1"]
    )
