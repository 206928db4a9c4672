"""Cutting sequences: published cases, and every way to cut small ones as an oracle."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.plan import (
    SliceProblem,
    equal_splits,
    fit_cost,
    parse_cost,
    plan_batch,
    plan_slices,
    read_cost_table,
)

POSITIONS = "l * (2 * ctx + l + 1) / 2"  # the sum of the positions of a slice, from 1


def problem(expression: str, length: int, stages: int, **options) -> SliceProblem:
    return SliceProblem(cost=parse_cost(expression), length=length, stages=stages, **options)


@pytest.mark.parametrize(
    ("expression", "num_slices", "expected"),
    [
        (POSITIONS, 3, 134),
        (POSITIONS, None, 102),
        (f"2 + {POSITIONS}", None, 122),
        (f"max(8, {POSITIONS})", None, 103),
    ],
)
def test_twelve_tokens_on_three_stages(expression, num_slices, expected):
    plan = plan_slices(problem(expression, 12, 3), num_slices=num_slices)
    assert plan.time == expected
    if num_slices == 3:
        assert plan.lengths == (7, 3, 2)


def test_time_of_a_forward_sweep():
    """Costs 10, 26, 42 and P = 3: 78 + 2 x 42, and a hop of 0.5 twice."""
    costs = {0: 10.0, 2: 26.0, 4: 42.0}
    for hop, expected in ((0.0, 162.0), (0.5, 163.0)):
        found = SliceProblem(
            cost=lambda lengths, contexts: np.array([costs[each] for each in contexts]),
            length=6,
            stages=3,
            hop=hop,
        )
        assert found.evaluate([2, 2, 2]).time == expected


def compositions(total: int):
    """Every way to write a number as an ordered sum."""
    for cuts in itertools.product([False, True], repeat=total - 1):
        ends = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), total]
        yield [stop - start for start, stop in itertools.pairwise(ends)]


tables = st.integers(1, 8).flatmap(
    lambda length: st.lists(
        st.integers(0, 20), min_size=(length + 1) ** 2, max_size=(length + 1) ** 2
    ).map(lambda numbers: np.array(numbers, float).reshape(length + 1, length + 1))
)


@settings(deadline=None)
@given(
    tables,
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([1, 2, 3]),
)
def test_no_way_to_cut_is_faster(table, stages, microbatches, num_slices, grid):
    """Any costs at all: neither monotonic, nor of a form."""
    length = len(table) - 1
    found = SliceProblem(
        cost=lambda lengths, contexts: table[lengths, contexts],
        length=length,
        stages=stages,
        microbatches=microbatches,
        grid=grid,
    )
    cells = -(-length // grid)
    if num_slices is not None and num_slices > cells:
        with pytest.raises(ValueError, match=f"make at most {cells} slices"):
            plan_slices(found, num_slices=num_slices)
        return
    plan = plan_slices(found, num_slices=num_slices)
    assert plan == found.evaluate(plan.lengths)
    ends = np.cumsum(plan.lengths)
    assert all(end % grid == 0 for end in ends[:-1])
    options = [
        found.evaluate(lengths).time
        for lengths in compositions(length)
        if all(end % grid == 0 for end in np.cumsum(lengths)[:-1])
        and num_slices in (None, len(lengths))
    ]
    assert plan.time == pytest.approx(min(options))


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.integers(0, 9), min_size=75, max_size=75),
)
def test_no_way_to_cut_a_batch_is_faster(length, batch_size, stages, numbers):
    costs = np.array(numbers, float).reshape(3, 5, 5)
    found = SliceProblem(cost=parse_cost("l"), length=length, stages=stages)

    def cost_of(size):
        return lambda lengths, contexts: costs[size - 1][lengths, contexts]

    def evaluate(groups):
        parts = [
            SliceProblem(cost=cost_of(size), length=length, stages=stages).evaluate(lengths).costs
            for size, lengths in groups
        ]
        return found.time(sum(map(sum, parts)), max(map(max, parts)))

    plan = plan_batch(found, batch_size, cost_of)
    assert sum(size for size, _ in plan.groups) == batch_size
    assert plan.time == pytest.approx(evaluate(plan.groups))
    every = [
        evaluate(list(zip(sizes, cuts, strict=True)))
        for sizes in compositions(batch_size)
        for cuts in itertools.product(list(compositions(length)), repeat=len(sizes))
    ]
    assert plan.time == pytest.approx(min(every))


@settings(deadline=None)
@given(
    st.floats(0, 100), st.floats(0.1, 10), st.floats(0, 0.1), st.integers(1, 64), st.integers(1, 3)
)
def test_never_worse_than_an_equal_split(overhead, per_token, per_pair, stages, max_lengths):
    found = problem(
        f"{overhead!r} + {per_token!r} * l + {per_pair!r} * l * (ctx + l / 2)", 96, stages, grid=8
    )
    free = plan_slices(found)
    few = plan_slices(found, max_lengths=max_lengths)
    assert len(set(few.lengths)) <= max_lengths
    assert free.time <= few.time * (1 + 1e-9)
    equal = [each for each in equal_splits(found, range(1, 13)) if len(set(each.lengths)) == 1]
    assert few.time <= min(each.time for each in equal) * (1 + 1e-9)


def test_a_large_search():
    """2048 tokens on a grid of 8, 96 stages; `benchmarks/slice_planner.py` prints its duration."""
    found = problem("20 + l * (1 + ctx / 4000 + l / 8000)", 2048, 96, grid=8)
    plan = plan_slices(found)
    assert plan.time < min(each.time for each in equal_splits(found, range(1, 257)))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("l +", "is no expression"),
        ("__import__('os').system('true')", "which is no arithmetic of 'l' and 'ctx'"),
        ("l.real", "holds 'l.real'"),
        ("[l][0]", "holds"),
        ("lambda: l", "holds"),
        ("x + l", "holds 'x'"),
        ("'l'", "holds"),
        ("True", "holds 'True'"),
        ("max()", "holds 'max\\(\\)'"),
        ("max(l, key=ctx)", "holds"),
        ("l if ctx else 1", "holds"),
        ("", "is no expression"),
    ],
)
def test_what_is_no_cost(expression, message):
    with pytest.raises(ValueError, match=message):
        parse_cost(expression)


def test_expressions():
    lengths, contexts = np.array([1, 2, 4]), np.array([0, 1, 3])
    for expression, expected in (
        ("3", [3, 3, 3]),
        ("-l + 2 ** ctx", [0, 0, 4]),
        ("max(l, ctx, 2)", [2, 2, 4]),
        ("min(l, 3) // 2 + ctx % 2", [0, 2, 2]),
        ("sqrt(l * l) + log2(l) - abs(ctx)", [1, 2, 3]),
    ):
        assert parse_cost(expression)(lengths, contexts).tolist() == expected


@pytest.mark.parametrize("expression", ["l - 5", "1 / ctx", "log(ctx)"])
def test_costs_must_be_numbers_and_not_negative(expression):
    with pytest.raises(ValueError, match="must cost a finite time that is not negative"):
        plan_slices(problem(expression, 8, 2))


def test_a_table_is_completed_by_the_model_of_the_paper():
    """Exact on data of its form, between and beyond the rows."""

    def true(length, context):
        return (
            5
            + 2 * length
            + (context > 0) * (1 + 0.5 * length + 0.25 * context)
            + (0.01 * length * context)
        )

    rows = [
        (length, context, true(length, context))
        for length in (8, 16, 64)
        for context in (0, 32, 128)
    ]
    text = "l,ctx,time\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n"
    cost = read_cost_table(text)
    lengths, contexts = np.array([8, 24, 100, 40, 4]), np.array([0, 0, 0, 77, 300])
    expected = [true(*pair) for pair in zip(lengths, contexts, strict=True)]
    assert cost(lengths, contexts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the header of a cost table is 'l,ctx,time'"),
        ("l,c,t\n1,0,1\n", "line 1: the header"),
        ("l,ctx,time\n1,0\n", "line 2: a row holds three numbers"),
        ("l,ctx,time\n1,0,fast\n", "line 2: a row holds three numbers"),
        ("l,ctx,time\n0,0,1\n", "line 2: l must be at least 1"),
        ("l,ctx,time\n1,0,-1\n", "line 2: l must be at least 1"),
        ("l,ctx,time\n1,0,1\n2,8,1\n", "needs times without context .* for two lengths or more"),
    ],
)
def test_what_is_no_cost_table(text, message):
    with pytest.raises(ValueError, match=message):
        read_cost_table(text)


def test_nothing_is_faster_than_free():
    """A fit through noise must not promise negative times."""
    cost = fit_cost([(8.0, 0.0, 1.0), (16.0, 0.0, 2.0), (8.0, 64.0, 1.5), (16.0, 64.0, 2.0)])
    assert cost(np.arange(1, 64), np.full(63, 0)).min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length"),
        ({"stages": 0}, "stages"),
        ({"grid": 0}, "grid"),
        ({"microbatches": 0}, "microbatches"),
        ({"hop": -1.0}, "hop must be finite and not negative"),
    ],
)
def test_sizes_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        problem("l", **({"length": 8, "stages": 2} | options))


def test_lengths_that_can_not_be_had():
    with pytest.raises(
        ValueError, match="at most 1 different lengths make 7 tokens on a grid of 2"
    ):
        plan_slices(problem("l", 7, 2, grid=2), num_slices=3, max_lengths=1)
