"""What holds for every schedule: each joins by a row in suite.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import Pool, TickForm, lower
from jaxpipe.schedule import (
    Kind,
    ScheduleError,
    from_csv,
    make_schedule,
    peak_live,
    simulate,
    to_csv,
    validate,
)
from tests.schedule.strategies import corrupt, costs, legal_schedules
from tests.schedule.suite import SUITE, schedules

# beartype, which checks signatures in tests, looks at a random item of every sequence.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

rows = pytest.mark.parametrize(
    "row", SUITE, ids=lambda row: "-".join([row.name, *row.option_names])
)


@rows
@settings(max_examples=6, deadline=None)
@given(data=st.data(), costs=costs)
def test_every_size(row, data, costs):
    """Valid, above the lower bound, one slot per live activation, equal after dump and load.

    Corruptions are rejected.
    """
    schedule = data.draw(schedules(row))
    validate(schedule)
    assert schedule.name == row.name

    simulation = simulate(schedule, costs)
    assert simulation.makespan >= simulation.lower_bound * (1 - 1e-12)
    assert 0 <= simulation.span <= simulation.makespan * (1 + 1e-12)
    assert all(idle >= -1e-9 * simulation.makespan for idle in simulation.inner_idle)

    assert from_csv(to_csv(schedule)) == schedule

    if all(len(cell) == 1 for row in schedule.rows for cell in row):
        program = lower(schedule, costs)
        slots = program.num_slots.get(Pool.STASH, (0,) * schedule.num_devices)
        assert slots == peak_live(schedule, until=Kind.B)
        assert program.cost >= program.ideal_cost * (1 - 1e-12)

    corrupted = corrupt(data, schedule)
    with pytest.raises(ScheduleError) as caught:
        validate(corrupted)
    assert all(violation.device is not None for violation in caught.value.violations)


@settings(max_examples=40, deadline=None)
@given(schedule=legal_schedules(), costs=costs)
def test_any_legal_order_is_accepted(schedule, costs):
    validate(schedule)
    assert from_csv(to_csv(schedule)) == schedule
    simulation = simulate(schedule, costs)
    assert simulation.makespan >= simulation.lower_bound * (1 - 1e-12)
    for form in TickForm:
        program = lower(schedule, costs, form=form)
        assert set(program.ticks) == set(schedule.positions)


@rows
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 4), "num_devices must be at least 1, but is 0; use num_devices=1"),
        ((4, 0), "num_microbatches must be at least 1, but is 0; use num_microbatches=1"),
        ((4, -3), "num_microbatches must be at least 1, but is -3"),
    ],
    ids=["no-devices", "no-microbatches", "negative"],
)
def test_sizes_below_one_are_refused(row, sizes, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(row.name, *sizes)


@rows
def test_a_boolean_is_not_a_size(row):
    with pytest.raises(TypeError, match="num_microbatches must be an integer, but is True of type"):
        make_schedule(row.name, 4, True)
