"""Legal orders and deadlocks."""

import pytest

from jaxpipe.schedule import DeadlockError, from_csv, one_f_one_b, walk


def test_visits_every_cell_once_and_after_what_it_waits_for():
    schedule = one_f_one_b(4, 6)
    ended = set()
    for device, column, awaited in walk(schedule):
        assert ended.issuperset(awaited)
        ended.update(schedule.rows[device][column])
    assert ended == set(schedule.positions)


def test_a_cycle_is_printed():
    schedule = from_csv("0F0,0BW0,0F1,0BW1\n1F1,1BW1,1F0,1BW0\n", check=False)
    with pytest.raises(DeadlockError) as caught:
        list(walk(schedule))
    assert str(caught.value) == (
        "schedule 'csv' deadlocks: each of these waits for the next, and the last one for the "
        "first: 0BW0 (device 0, column 1), 1BW0 (device 1, column 3), 1F1 (device 1, column 0), "
        "0F1 (device 0, column 2); issue one of them earlier in its row"
    )


def test_a_device_that_waits_outside_the_cycle_is_not_part_of_it():
    text = "0F0,0BW0,0F1,0BW1\n1F1,1BW1,1F0,1BW0\n2F0,2BW0,2F1,2BW1\n"
    schedule = from_csv(text, check=False)
    with pytest.raises(DeadlockError) as caught:
        list(walk(schedule))
    assert {action.stage for action in caught.value.cycle} == {0, 1}


def test_an_action_that_waits_for_itself_is_a_cycle():
    schedule = from_csv("(0F0;0BW0)OVERLAP\n", check=False)
    with pytest.raises(DeadlockError, match=r"first: 0F0 [(]device 0, column 0[)]; issue"):
        list(walk(schedule))
