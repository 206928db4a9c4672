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


def test_it_costs_what_it_should():
    costs = Costs(recompute=0.5)
    plain = simulate(make_schedule("gpipe", 4, 8), costs)
    recomputed = simulate(insert_recompute(make_schedule("gpipe", 4, 8)), costs)
    assert recomputed.busy == tuple(busy + 8 * 0.5 for busy in plain.busy)
    # R of one device does not wait for the B of the next one.
    assert recomputed.makespan == plain.makespan + 8 * 0.5


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="no stage 4 to recompute in schedule 'gpipe'; use stage"):
        insert_recompute(make_schedule("gpipe", 4, 8), stages=[4])


def test_recomputing_twice_is_refused():
    once = insert_recompute(make_schedule("gpipe", 4, 8))
    with pytest.raises(ValueError, match=r"stage 0 of schedule 'gpipe' recomputes already \(0R0\)"):
        insert_recompute(once)
