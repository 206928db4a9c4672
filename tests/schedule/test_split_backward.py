"""B and W apart and together."""

import pytest
from hypothesis import given, settings

from jaxpipe.schedule import (
    from_csv,
    make_schedule,
    merge_backward,
    split_backward,
    undivide_backward,
    validate,
)
from jaxpipe.schedule.notation import cell_text
from tests.schedule.strategies import legal_schedules

# beartype, which checks signatures in tests, looks at a random item of every sequence.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


def test_w_follows_its_b():
    split = split_backward(from_csv("0F0,0F1,0BW0,0BW1\n"))
    assert [cell_text(cell) for cell in split.rows[0]] == ["0F0", "0F1", "0B0", "0W0", "0B1", "0W1"]


def test_actions_issued_together_stay_together():
    split = split_backward(from_csv("0F0,(0BW0;0F1)OVERLAP,0BW1\n"))
    assert [cell_text(cell) for cell in split.rows[0]] == [
        "0F0",
        "(0B0;0F1)OVERLAP",
        "0W0",
        "0B1",
        "0W1",
    ]
    assert merge_backward(split) == from_csv("0F0,(0BW0;0F1)OVERLAP,0BW1\n")


def test_a_w_that_stands_elsewhere_is_left_alone():
    text = "0F0,0F1,0B0,0B1,0W0,0W1\n"
    assert merge_backward(from_csv(text)) == from_csv(text)


def test_merging_undoes_splitting():
    for name in ("1f1b", "interleaved_1f1b", "seq1f1b", "chimera", "pipedream"):
        schedule = make_schedule(name, 4, 6)
        assert merge_backward(split_backward(schedule)) == schedule


@settings(max_examples=20, deadline=None)
@given(schedule=legal_schedules())
def test_any_legal_schedule_stays_legal(schedule):
    validate(merge_backward(schedule))
    validate(split_backward(schedule))


@settings(deadline=None)
@given(legal_schedules())
def test_undivided_backwards_are_legal_and_as_many(schedule):
    whole = undivide_backward(schedule)
    validate(whole)
    assert not any(action.kind == "W" for action in whole.positions)
    assert whole.by_role.keys() == schedule.by_role.keys()


@pytest.mark.parametrize("name", ["zb_h1", "zbv", "dualpipe"])
def test_undivided_zero_bubble_schedules(name):
    whole = undivide_backward(make_schedule(name, 4, 8))
    validate(whole)
    assert {str(action.kind) for action in whole.positions} == {"F", "BW"}
