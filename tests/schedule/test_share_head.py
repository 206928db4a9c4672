"""The head shared out: legal everywhere, and on 1F1B what the paper states."""

import importlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lower import lower
from jaxpipe.schedule import (
    Costs,
    Kind,
    draw_text,
    from_csv,
    from_json,
    make_schedule,
    peak_live,
    schedule_names,
    share_head,
    simulate,
    to_csv,
    to_json,
    validate,
)
from jaxpipe.schedule.gaps import Gaps

SIZES = [(1, 1), (1, 5), (2, 1), (3, 7), (4, 2), (4, 4), (4, 8), (4, 21), (8, 24), (8, 3)]
SHARES = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.75, 1.0])
FREE = st.floats(0.125, 4.0, width=16)


@pytest.mark.parametrize(("P", "M"), SIZES)
@pytest.mark.parametrize("num_barriers", [1, 2])
@pytest.mark.parametrize("head", [0.0, 0.25, 1.0], ids=lambda head: f"head{head:g}")
def test_1f1b_keeps_its_idle_time_for_one_more_activation_a_barrier(P, M, num_barriers, head):
    costs = Costs(
        backward_input=1.25,
        backward_weight=0.5,
        head=head,
        head_statistics=(num_barriers - 1) * head / 2,
    )
    shared = share_head(make_schedule("1f1b", P, M), num_barriers=num_barriers, costs=costs)
    validate(shared)
    simulation = simulate(shared, costs)
    assert max(simulation.idle) == pytest.approx((P - 1) * (1 + 1.25 + 0.5))
    work = 1 + 1.25 + 0.5 + costs.head + costs.head_statistics
    assert simulation.busy == pytest.approx((M * work,) * P)
    assert peak_live(shared, until=Kind.B) == tuple(min(M, P - d + num_barriers) for d in range(P))


@settings(max_examples=60, deadline=None)
@given(P=st.integers(1, 10), M=st.integers(1, 30), forward=FREE, backward=FREE, share=SHARES)
def test_one_barrier_costs_nothing_while_a_head_is_no_longer_than_a_backward(
    P, M, forward, backward, share
):
    costs = Costs(
        forward=forward,
        backward_input=backward / 2,
        backward_weight=backward / 2,
        head=share * backward,
    )
    shared = share_head(make_schedule("1f1b", P, M), costs=costs)
    idle = max(simulate(shared, costs).idle)
    assert idle == pytest.approx((P - 1) * (forward + backward), rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    P=st.integers(1, 4),
    M=st.integers(1, 16),
    forward=FREE,
    backward=FREE,
    share=SHARES,
    of_it=st.sampled_from([0.0, 0.25, 1 / 3, 0.5]),
)
def test_two_barriers_cost_nothing_on_few_devices(P, M, forward, backward, share, of_it):
    costs = Costs(
        forward=forward,
        backward_input=backward / 2,
        backward_weight=backward / 2,
        head=share * (1 - of_it) * backward,
        head_statistics=share * of_it * backward,
    )
    shared = share_head(make_schedule("1f1b", P, M), num_barriers=2, costs=costs)
    idle = max(simulate(shared, costs).idle)
    assert idle == pytest.approx((P - 1) * (forward + backward), rel=1e-3)


def test_a_head_on_the_last_stage_is_what_it_saves():
    """Unshared, the last device works `P` heads a microbatch, and everyone waits for it."""
    P, M, head = 4, 16, 0.5
    uneven = Costs(forward=1.0, stage_shares=(1.0, 1.0, 1.0, 1.0 + P * head / 3))
    shared = share_head(make_schedule("1f1b", P, M), costs=Costs(head=head))
    alone = simulate(make_schedule("1f1b", P, M), uneven).makespan
    assert alone - simulate(shared, Costs(head=head)).makespan > (M - P) * (P - 1) * head


@pytest.mark.parametrize("name", [n for n in schedule_names() if not n.startswith("pipedream")])
@pytest.mark.parametrize("num_barriers", [1, 2])
def test_any_schedule_stays_legal(name, num_barriers):
    base = make_schedule(name, 2, 4)
    shared = share_head(base, num_barriers=num_barriers, costs=Costs(head=0.5, head_statistics=0.2))
    validate(shared)
    assert from_csv(to_csv(shared)) == from_json(to_json(shared)) == shared
    program = lower(shared)
    for action, tick in program.ticks.items():
        if action.kind in (Kind.B, Kind.BW) and action.stage == shared.num_stages - 1:
            heads = [shared.by_role["H", part, *action[2:4]] for part in range(2)]
            assert all(program.ticks[head] <= tick for head in heads)
    more = num_barriers * base.num_chunks
    limit = max(peak_live(base, until=Kind.B)) + more
    assert max(peak_live(shared, until=Kind.B)) <= limit


def test_heads_travel_between_devices():
    costs = Costs(head=0.5, hop=0.1)
    shared = share_head(make_schedule("1f1b", 4, 8), costs=costs)
    validate(shared)
    starts = simulate(shared, costs).starts
    for action in starts:
        if action.kind is Kind.H:
            forward = shared.by_role["F", 3, *action[2:4]]
            hop = 0.0 if action.stage == 3 else 0.1
            assert starts[action] >= starts[forward] + 1 + hop - 1e-9


def test_the_picture_is_true():
    drawn = draw_text(
        share_head(make_schedule("1f1b", 2, 4), costs=Costs(head=1.0)), Costs(head=1.0)
    )
    picture = re.findall(
        r"^    (device .*)$",
        importlib.import_module("jaxpipe.schedule.share_head").__doc__ or "",
        re.M,
    )
    assert picture == [line for line in drawn.splitlines() if line.startswith("device")]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("1f1b", {"num_barriers": 3}, "num_barriers=3, but a head has one barrier or two; use 1"),
        ("pipedream", {}, "'pipedream' updates weights within the step"),
        ("hanayo", {"num_barriers": 2}, "'hanayo' cannot run ahead of its backwards: they would"),
    ],
    ids=["barriers", "asynchronous", "deadlock"],
)
def test_what_cannot_be_shared_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        share_head(make_schedule(name, 4, 8), **options)


def test_a_head_is_shared_once():
    shared = share_head(make_schedule("1f1b", 2, 2))
    with pytest.raises(ValueError, match=r"'1f1b' shares its head out already \(0H0\)"):
        share_head(shared)


def test_gaps_are_used_up():
    gaps = Gaps([(0.0, 1.0), (3.0, 4.0)], tie=1e-9)
    assert gaps.take(1.0, earliest=1.5, latest=9.0) == 1.5
    assert gaps.take(0.5, earliest=0.0, latest=9.0) == 1.0
    assert gaps.take(1.0, earliest=0.0, latest=4.0) is None
    assert gaps.take(1.0, earliest=0.0, latest=9.0) == 4.0
