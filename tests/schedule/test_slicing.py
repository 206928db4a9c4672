"""Microbatches in slices."""

import pytest

from jaxpipe.schedule import (
    insert_recompute,
    make_schedule,
    schedule_names,
    slice_microbatches,
    split_backward,
    validate,
)


def test_sliced_gpipe_is_terapipe():
    for P, M, k in ((1, 1, 3), (4, 2, 2), (2, 3, 4)):
        sliced = slice_microbatches(make_schedule("gpipe", P, M), k)
        assert sliced.rows == make_schedule("terapipe", P, M, num_slices=k).rows


@pytest.mark.parametrize("name", schedule_names())
def test_any_schedule_stays_legal(name):
    schedule = split_backward(make_schedule(name, 4, 8))
    if schedule.num_slices > 1 or any(len(cell) > 1 for row in schedule.rows for cell in row):
        return
    validate(slice_microbatches(schedule, 3))


def test_recompute_descends_with_the_backward():
    sliced = slice_microbatches(insert_recompute(make_schedule("gpipe", 1, 1)), 2)
    validate(sliced)
    assert [str(action) for action in sliced.actions(0)][2:4] == ["0R0.1", "0R0"]


@pytest.mark.parametrize(
    ("schedule", "num_slices", "message"),
    [
        (make_schedule("seq1f1b", 2, 2), 2, "'seq1f1b' has 2 slices already; slice the schedule"),
        (make_schedule("dualpipe", 2, 4), 2, r"'dualpipe' holds 1F3\+0BW0, whose slices have no"),
        (make_schedule("gpipe", 2, 4), 0, "num_slices must be at least 1, but is 0"),
    ],
    ids=["slices", "overlap", "zero"],
)
def test_what_cannot_be_sliced_is_refused(schedule, num_slices, message):
    with pytest.raises(ValueError, match=message):
        slice_microbatches(schedule, num_slices)
