"""What remains of a schedule when stages need fewer gradients."""

import re

import pytest

from jaxpipe.schedule import freeze, insert_recompute, make_schedule, schedule_names, validate


@pytest.mark.parametrize(
    "name", sorted(set(schedule_names()) - {"forward_only", "pipedream", "pipedream_2bw"})
)
def test_a_frozen_schedule_is_valid(name):
    schedule = insert_recompute(make_schedule(name, 4, 8))
    stages = schedule.num_stages
    frozen = freeze(
        schedule, ["none"] + ["input"] * (stages // 2) + ["full"] * (stages - stages // 2 - 1)
    )
    validate(frozen)
    forwards = sum(action.kind == "F" for action in schedule.positions)
    assert sum(action.kind == "F" for action in frozen.positions) == forwards
    assert not any(action.stage == 0 and action.kind != "F" for action in frozen.positions)


def test_no_stage_frozen_changes_nothing():
    schedule = make_schedule("zb_h1", 4, 8)
    assert freeze(schedule, ["full"] * 4) == schedule


def test_all_frozen_is_the_forward():
    frozen = freeze(make_schedule("1f1b", 4, 8), ["none"] * 4)
    assert frozen.rows == make_schedule("forward_only", 4, 8).rows


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (["full"], "backward must name what each of the 3 stages needs; found 1: full"),
        (
            ["none", "full", "none"],
            "only a prefix of the stages can go without; found none, full, none: use 'input' for a "
            "frozen stage above stage 1",
        ),
        (["full", "some", "full"], "'some' is not a valid Backward"),
    ],
)
def test_what_no_schedule_can_be(backward, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        freeze(make_schedule("1f1b", 3, 2), backward)


def test_what_was_dropped_does_not_come_back():
    frozen = freeze(make_schedule("1f1b", 3, 2), ["none", "input", "full"])
    with pytest.raises(
        ValueError, match="stage 1 .* has the backward input, from which full can't"
    ):
        freeze(frozen, ["none", "full", "full"])
