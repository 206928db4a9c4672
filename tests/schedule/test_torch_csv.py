"""torch's CSV both ways."""

import re

import pytest

from jaxpipe.schedule import (
    ScheduleError,
    from_torch_csv,
    insert_recompute,
    make_schedule,
    to_torch_csv,
)
from tests.schedule.goldens import golden, golden_names, golden_text

LETTERS = {"F": "F", "B": "I", "W": "W", "BW": "B"}


@pytest.mark.parametrize("name", golden_names("torch"))
def test_letters_are_those_of_torch_and_come_back(name):
    schedule = golden(name)
    text = to_torch_csv(schedule)
    expected = re.sub(r"(?<=\d)(BW|[FBW])", lambda match: LETTERS[match[0]], golden_text(name))
    assert text == expected.replace("OVERLAP", "OVERLAP_F_B")
    placement = schedule.placement
    assert from_torch_csv(text, placement=placement, name=name) == schedule


def test_idle_cells_are_skipped():
    assert from_torch_csv("0F0,,,0B0\n,1F0,1B0,\n").rows == from_torch_csv("0F0,0B0\n1F0,1B0").rows


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (make_schedule("seq1f1b", 2, 2), "torch has no action 0F0.1 of schedule 'seq1f1b'"),
        (insert_recompute(make_schedule("gpipe", 2, 2)), "torch has no action 0R0"),
        (make_schedule("pipedream", 2, 2), "torch has no action 0U@1"),
        (make_schedule("chimera", 2, 2), "torch keeps every stage on one device"),
    ],
    ids=["slices", "recompute", "updates", "directions"],
)
def test_what_torch_does_not_know_is_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        to_torch_csv(schedule)


@pytest.mark.parametrize("cell", ["0BW0", "0R0", "0F0.1", "(0F0;0B0)OVERLAP", "0SEND_F0"])
def test_a_cell_that_is_not_of_torch_is_named(cell):
    with pytest.raises(ScheduleError, match="device 0, column 1: .* torch writes <stage><kind>"):
        from_torch_csv(f"0F0,{cell}\n")


def test_a_v_needs_its_placement():
    with pytest.raises(ValueError, match="give the placement"):
        from_torch_csv(to_torch_csv(make_schedule("zbv", 4, 8)))
