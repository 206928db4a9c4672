"""What actions cost."""

import pytest

from jaxpipe.schedule import Action, Costs, Kind

COSTS = Costs(
    forward=2.0,
    backward_input=3.0,
    backward_weight=5.0,
    recompute=7.0,
    head_statistics=11.0,
    head=13.0,
    hop=0.5,
    overlap=0.25,
)


@pytest.mark.parametrize(
    ("kind", "cost"),
    [("F", 2), ("B", 3), ("W", 5), ("BW", 8), ("R", 7), ("U", 0), ("S", 11), ("H", 13)],
)
def test_cost_of_a_kind(kind, cost):
    assert COSTS.of_kind(Kind(kind)) == cost


def test_chunks_and_slices_share_the_cost():
    assert COSTS.of(Action(Kind.F, 3, 0), num_chunks=2, num_slices=4) == 0.25
    assert COSTS.per_microbatch == 10


def test_a_part_of_the_head_is_shared_by_slices_and_not_by_chunks():
    assert COSTS.of(Action(Kind.H, 3, 0), num_chunks=2, num_slices=4) == 13 / 4
    assert Costs(head=2.0, stage_shares=(9.0,)).of(Action(Kind.H, 3, 0)) == 2


def test_shares_replace_equal_parts():
    costs = Costs(forward=2.0, stage_shares=(0.5, 1.5), slice_shares=(1.0, 3.0))
    assert costs.of(Action(Kind.F, 1, 0, slice=1), num_chunks=9, num_slices=9) == 9


def test_of_two_actions_together_part_of_the_shorter_is_hidden():
    together = (Action(Kind.F, 0, 1), Action(Kind.BW, 1, 0))
    assert COSTS.of_cell(together) == 2 + 8 - 0.25 * 2
    assert COSTS.of_cell(together[:1]) == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"forward": -1.0}, "costs must be finite and not negative, but forward is -1.0"),
        ({"hop": float("nan")}, "but hop is nan; use 0 for what takes no time"),
        ({"recompute": float("inf")}, "but recompute is inf"),
        ({"stage_shares": (1.0, -1.0)}, r"but stage_shares is \(1.0, -1.0\)"),
        (
            {"forward": 1e308},
            "forward is 1e[+]308, which sums of times cannot hold; use another unit",
        ),
        ({"hop": 1e-320}, "hop is 1e-320, which sums"),
        ({"overlap": 1.5}, "overlap is a share between 0 and 1, but is 1.5; use overlap=1"),
    ],
    ids=["negative", "nan", "infinite", "share", "huge", "tiny", "overlap"],
)
def test_impossible_costs_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Costs(**bad)
