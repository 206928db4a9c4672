"""Partitions: cases worked out by hand, and three other ways to find the optimum."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from jaxpipe.plan import partition


@pytest.mark.parametrize(
    ("weights", "num_stages", "heaviest"),
    [
        ([1, 2, 3, 4, 5, 6], 2, 11),
        ([1] * 8, 3, 3),
        ([1] * 38, 8, 5),
        ([5, 1, 1, 1, 1, 1], 3, 5),
        ([3, 1, 4, 1, 5, 9, 2, 6], 3, 14),
        ([10, 1, 1, 1], 2, 10),
        ([52.56, *[12.596] * 24, 0, 52.56], 8, 52.56),
        ([0, 0, 0], 2, 0),
        ([7], 1, 7),
    ],
)
def test_worked_out_by_hand(weights, num_stages, heaviest):
    found = partition(weights, num_stages)
    assert found.heaviest == heaviest
    assert sum(found.layers_per_stage) == len(weights)


def test_bounds_of_a_case_without_a_choice():
    assert partition([0, 1, 2, 3, 3, 3], 4).bounds == (0, 3, 4, 5, 6)


def loads_of(weights, bounds, speeds):
    ends = itertools.pairwise(bounds)
    return [
        sum(weights[start:stop]) / speed for (start, stop), speed in zip(ends, speeds, strict=True)
    ]


@st.composite
def problems(draw):
    weight = st.sampled_from([0.0, 1.0, 2.0, 3.0]) | st.floats(0, 9)
    weights = draw(st.lists(weight, min_size=1, max_size=9))
    num_stages = draw(st.integers(1, len(weights)))
    speed = st.sampled_from([0.5, 1.0, 2.0, 3.0])
    speeds = draw(st.lists(speed, min_size=num_stages, max_size=num_stages))
    return weights, speeds


@settings(deadline=None)
@given(problems())
def test_no_partition_at_all_is_better(problem):
    weights, speeds = problem
    found = partition(weights, len(speeds), speeds=speeds)
    inner = range(1, len(weights))
    every = [
        max(loads_of(weights, (0, *cuts, len(weights)), speeds))
        for cuts in itertools.combinations(inner, len(speeds) - 1)
    ]
    assert found.heaviest == pytest.approx(min(every))
    assert min(found.layers_per_stage) >= 1
    assert list(found.loads) == pytest.approx(loads_of(weights, found.bounds, speeds))


@pytest.mark.parametrize("seed", range(4))
def test_an_integer_programme_finds_no_better_one(seed):
    """Whether layer i is in stage s, as 0 or 1; the largest load is minimised."""
    random = np.random.default_rng(seed)
    count, num_stages = 20, 4
    weights, speeds = random.random(count), random.random(num_stages) + 0.5
    num_places = count * num_stages
    rows, lows, highs = [], [], []

    def constrain(entries, low, high):
        row = np.zeros(num_places + 1)
        for place, value in entries:
            row[place] += value
        rows.append(row)
        lows.append(low)
        highs.append(high)

    for layer in range(count):
        constrain([(layer * num_stages + stage, 1) for stage in range(num_stages)], 1, 1)
        if layer:
            numbers = [(layer * num_stages + stage, stage) for stage in range(num_stages)]
            numbers += [((layer - 1) * num_stages + stage, -stage) for stage in range(num_stages)]
            constrain(numbers, 0, 1)  # stages do not go down, nor skip one
    for stage in range(num_stages):
        constrain([(layer * num_stages + stage, 1) for layer in range(count)], 1, count)
        load = [
            (layer * num_stages + stage, weights[layer] / speeds[stage]) for layer in range(count)
        ]
        constrain([*load, (num_places, -1)], -np.inf, 0)
    objective = np.zeros(num_places + 1)
    objective[-1] = 1
    highest = np.array([1] * num_places + [np.inf])
    solved = milp(
        objective,
        constraints=LinearConstraint(rows, lows, highs),  # pyright: ignore[reportArgumentType]
        integrality=np.array([1] * num_places + [0]),
        bounds=Bounds(0, highest),  # pyright: ignore[reportArgumentType]
    )
    found = partition(weights.tolist(), num_stages, speeds=speeds.tolist())
    assert found.heaviest == pytest.approx(solved.fun, rel=1e-6)


def test_ten_thousand_layers():
    weights = np.random.default_rng(0).random(10_000).tolist()
    found = partition(weights, 64)
    assert sum(weights) / 64 <= found.heaviest <= sum(weights) / 64 + 1


@pytest.mark.parametrize(
    ("weights", "num_stages", "speeds", "message"),
    [
        ([1, 2], 3, None, "2 layers can't fill 3 stages; use at most 2 stages"),
        ([1, -1], 1, None, "layer 1 weighs -1"),
        ([float("nan")], 1, None, "layer 0 weighs nan"),
        ([1, 2], 0, None, "num_stages must be at least 1"),
        ([1, 2], 2, [1], "speeds must be 2 positive numbers"),
        ([1, 2], 2, [1, 0], "speeds must be 2 positive numbers"),
    ],
)
def test_what_is_refused(weights, num_stages, speeds, message):
    with pytest.raises(ValueError, match=message):
        partition(weights, num_stages, speeds=speeds)
