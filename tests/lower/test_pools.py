"""How long values live, spelled out for schedules small enough to follow."""

import pytest

from jaxpipe.lower import TickForm
from jaxpipe.lower.pools import lifetimes
from jaxpipe.lower.ticks import assign_ticks
from jaxpipe.schedule import Schedule, from_csv, insert_recompute, make_schedule, one_f_one_b


def draw(schedule: Schedule, form: TickForm, hop_ticks: int = 0) -> list[str]:
    """One line per value: pool, device, name, first and last moment."""
    ticks = assign_ticks(schedule, form, hop_ticks=hop_ticks)
    pools = lifetimes(schedule, ticks, form, hop_ticks=hop_ticks)
    return sorted(
        f"{pool} {device}: {life.value} {life.written}-{life.last_read}"
        for pool, devices in pools.items()
        for device, lives in enumerate(devices)
        for life in lives
    )


def test_one_action_a_tick():
    """Two moments a tick: messages arrive at 2 t, the action runs at 2 t + 1."""
    #             tick 0   1   2    3    4
    #   device 0       0F0 .   .    0BW0
    #   device 1       .   1F0 1BW0 .
    assert draw(one_f_one_b(2, 1), TickForm.SINGLE) == [
        "activation 1: 1F0 2-3",
        "gradient 0: 0BW0 6-7",
        "gradient 1: 1BW0 3-5",  # the head leaves it at once
        "stash 0: 0F0 1-7",
        "stash 1: 1F0 3-5",
    ]


def test_a_forward_and_a_backward_a_tick():
    """Three moments a tick: 3 t messages, 3 t + 1 the forward, 3 t + 2 the backward."""
    assert draw(one_f_one_b(2, 1), TickForm.PAIRED) == [
        "activation 1: 1F0 3-4",
        "gradient 0: 0BW0 6-8",
        "gradient 1: 1BW0 4-5",
        "stash 0: 0F0 1-8",
        "stash 1: 1F0 4-5",
    ]


def test_a_message_that_travels_a_tick_longer():
    assert draw(one_f_one_b(2, 1), TickForm.SINGLE, hop_ticks=1) == [
        "activation 1: 1F0 4-5",
        "gradient 0: 0BW0 10-11",
        "gradient 1: 1BW0 5-7",
        "stash 0: 0F0 1-11",
        "stash 1: 1F0 5-7",
    ]


def test_a_split_backward_keeps_two_stashes_and_a_gradient():
    assert draw(make_schedule("zb1p", 1, 1), TickForm.SINGLE) == [
        "gradient 0: 0B0 1-3",
        "stash 0: 0F0 1-3",
        "weight_gradient 0: 0W0 3-5",
        "weight_stash 0: 0F0 1-5",
    ]


def test_recomputation_keeps_the_input_and_fills_the_stash_late():
    assert draw(insert_recompute(one_f_one_b(1, 1)), TickForm.SINGLE) == [
        "gradient 0: 0BW0 1-5",
        "input 0: 0R0 1-3",
        "stash 0: 0F0 3-5",
    ]


@pytest.mark.parametrize("form", TickForm)
def test_between_stages_of_one_device_nothing_travels(form):
    """At the turn of a V the value is there at once, not a tick later."""
    text = "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=v\n0F0,1F0,1BW0,0BW0\n"
    moments = {line.split(": ")[1] for line in draw(from_csv(text), form)}
    width = len(form.value) + 1
    assert f"1F0 1-{width + 1}" in moments
