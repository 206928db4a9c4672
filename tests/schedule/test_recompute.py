"""Where R stands."""

import pytest

from jaxpipe.schedule import Costs, insert_recompute, make_schedule, simulate, validate


def test_r_stands_right_before_its_backward():
    schedule = insert_recompute(make_schedule("1f1b", 2, 2))
    validate(schedule)
    assert [str(action) for action in schedule.actions(1)] == [
        "1F0",
        "1R0",
        "1BW0",
        "1F1",
        "1R1",
        "1BW1",
    ]


def test_before_actions_issued_together_it_has_a_cell_of_its_own():
    schedule = insert_recompute(make_schedule("dualpipe_v", 2, 4))
    validate(schedule)
    assert sum(len(cell) == 2 for cell in schedule.rows[0]) == sum(
        len(cell) == 2 for cell in make_schedule("dualpipe_v", 2, 4).rows[0]
    )


def test_only_the_given_stages_recompute():
    schedule = insert_recompute(make_schedule("zb_h1", 4, 8), stages=[0, 2])
    validate(schedule)
    recomputing = {action.stage for action in schedule.positions if action.kind == "R"}
    assert recomputing == {0, 2}


def test_only_the_given_microbatches_are_recomputed():
    schedule = insert_recompute(make_schedule("v_half", 2, 4), microbatches=range(3))
    validate(schedule)
    recomputed = {action.microbatch for action in schedule.positions if action.kind == "R"}
    assert recomputed == {0, 1, 2}


def test_it_costs_what_it_should():
    costs = Costs(recompute=0.5)
    plain = simulate(make_schedule("gpipe", 4, 8), costs)
    recomputed = simulate(insert_recompute(make_schedule("gpipe", 4, 8)), costs)
    assert recomputed.busy == tuple(busy + 8 * 0.5 for busy in plain.busy)
    # R of one device does not wait for the B of the next one.
    assert recomputed.makespan == plain.makespan + 8 * 0.5


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"stages": [4]}, "no stage 4 to recompute in schedule 'gpipe'; use numbers from 0 to 3"),
        ({"microbatches": [1, 9]}, "no microbatch 9 to recompute .* use numbers from 0 to 7"),
    ],
)
def test_what_is_not_there_is_refused(chosen, message):
    with pytest.raises(ValueError, match=message):
        insert_recompute(make_schedule("gpipe", 4, 8), **chosen)


def test_recomputing_twice_is_refused():
    once = insert_recompute(make_schedule("gpipe", 4, 8))
    with pytest.raises(ValueError, match=r"stage 0 of schedule 'gpipe' recomputes already \(0R0\)"):
        insert_recompute(once)
