"""Interval colouring."""

from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.lower.slots import Lifetime, allocate

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=30)


@given(intervals)
def test_no_two_values_alive_share_a_slot_and_none_is_wasted(starts_and_lengths):
    lives = [
        Lifetime(number, start, start + length)
        for number, (start, length) in enumerate(starts_and_lengths)
    ]
    slots, num_slots = allocate(lives)
    most = 0
    for moment in range(42):
        alive = [life.value for life in lives if life.written <= moment <= life.last_read]
        taken = [slots[value] for value in alive]
        assert len(set(taken)) == len(alive)
        most = max(most, len(alive))
    assert num_slots == most
    assert set(slots.values()) == set(range(num_slots))


def test_a_slot_is_free_after_the_last_read_and_not_at_it():
    _, shared = allocate([Lifetime("a", 0, 1), Lifetime("b", 2, 3)])
    _, apart = allocate([Lifetime("a", 0, 2), Lifetime("b", 2, 3)])
    assert (shared, apart) == (1, 2)
