"""How long values live, spelled out for schedules small enough to follow."""

import pytest

from jaxpipe.lower import TickForm
from jaxpipe.lower.pools import lifetimes
from jaxpipe.lower.ticks import assign_ticks
from jaxpipe.schedule import (
    Schedule,
    freeze,
    from_csv,
    insert_recompute,
    make_schedule,
    one_f_one_b,
)


def draw(schedule: Schedule, form: TickForm, hop_ticks: int = 0) -> list[str]:
    """One line per value: pool, device, name, first and last moment."""
    ticks = assign_ticks(schedule, form, hop_ticks=hop_ticks)
    pools = lifetimes(schedule, ticks, hop_ticks=hop_ticks)
    return sorted(
        f"{pool} {device}: {life.value} {life.written}-{life.last_read}"
        for pool, devices in pools.items()
        for device, lives in enumerate(devices)
        for life in lives
    )


def test_one_action_a_tick():
    """Five moments a tick: 5 t messages, then F at + 1, R at + 2, B or BW at + 3, W at + 4."""
    #             tick 0   1   2    3
    #   device 0       0F0 .   .    0BW0
    #   device 1       .   1F0 1BW0 .
    assert draw(one_f_one_b(2, 1), TickForm.SINGLE) == [
        "activation 1: 1F0 5-6",
        "gradient 0: 0BW0 15-18",
        "gradient 1: 1BW0 6-13",  # the head leaves it at once
        "stash 0: 0F0 1-18",
        "stash 1: 1F0 6-13",
    ]


def test_a_forward_and_a_backward_a_tick():
    assert draw(one_f_one_b(2, 1), TickForm.PAIRED) == [
        "activation 1: 1F0 5-6",
        "gradient 0: 0BW0 10-13",
        "gradient 1: 1BW0 6-8",
        "stash 0: 0F0 1-13",
        "stash 1: 1F0 6-8",
    ]


def test_a_message_that_travels_a_tick_longer():
    assert draw(one_f_one_b(2, 1), TickForm.SINGLE, hop_ticks=1) == [
        "activation 1: 1F0 10-11",
        "gradient 0: 0BW0 25-28",
        "gradient 1: 1BW0 11-18",
        "stash 0: 0F0 1-28",
        "stash 1: 1F0 11-18",
    ]


def test_a_split_backward_keeps_two_stashes_and_a_gradient():
    assert draw(make_schedule("zb1p", 1, 1), TickForm.SINGLE) == [
        "gradient 0: 0B0 1-8",
        "stash 0: 0F0 1-8",
        "weight_gradient 0: 0W0 8-14",
        "weight_stash 0: 0F0 1-14",
    ]


def test_recomputation_keeps_the_input_and_fills_the_stash_late():
    assert draw(insert_recompute(one_f_one_b(1, 1)), TickForm.SINGLE) == [
        "gradient 0: 0BW0 1-13",
        "input 0: 0R0 1-7",
        "stash 0: 0F0 7-13",
    ]


def test_a_frozen_stage_keeps_nothing_for_w():
    """Where backwards are split, all layers leave both parts of their stash; B reads both."""
    schedule = freeze(make_schedule("zb1p", 2, 1), ["full", "input"])
    assert [line for line in draw(schedule, TickForm.SINGLE) if " 1: " in line] == [
        "activation 1: 1F0 5-6",
        "gradient 1: 1B0 6-13",
        "stash 1: 1F0 6-13",
        "weight_stash 1: 1F0 6-13",
    ]


def test_a_frozen_prefix_leaves_its_input_where_nobody_minds():
    schedule = insert_recompute(freeze(one_f_one_b(2, 1), ["none", "full"]))
    assert [line for line in draw(schedule, TickForm.SINGLE) if "input" in line] == [
        "input 0: 0F0 1-1",
        "input 1: 1R0 6-12",
    ]


@pytest.mark.parametrize("form", TickForm)
def test_between_stages_of_one_device_nothing_travels(form):
    """At the turn of a V the value is there at once, not a tick later."""
    text = "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=v\n0F0,1F0,1BW0,0BW0\n"
    assert "activation 0: 1F0 1-6" in draw(from_csv(text), form)
