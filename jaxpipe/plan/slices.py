"""Into which slices to cut a sequence.

Li et al., TeraPipe (arXiv 2102.07988), section 3.3. Slices of times `t_1 ... t_k` go through a
pipeline of `P` stages, for each of `M` microbatches, in

    M (t_1 + ... + t_k) + (P - 1) (max t_i + hop)

Short slices fill and drain the pipeline fast, but each costs an overhead, and later tokens attend
to more earlier ones, so equal times take unequal lengths. For a bound on the longest slice a
dynamic programme over the tokens finds the least sum; the bound is then chosen. Where the paper
tries bounds one after the other and skips those that differ little, a search by intervals leaves
out only bounds that can't win, so that the result is exact.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxpipe.plan.slice_cost import SliceCost
from jaxpipe.schedule.sizes import check_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicePlan:
    """A way to cut a sequence.

    Attributes:
        lengths: Tokens of each slice.
        costs: What each takes in one stage.
        time: All microbatches through all stages.
    """

    lengths: tuple[int, ...]
    costs: tuple[float, ...]
    time: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceProblem:
    """What is to be cut, and for what.

    Attributes:
        cost: What a slice takes in one stage.
        length: Tokens of a sequence.
        stages: Stages of the pipeline.
        microbatches: Sequences, or groups of them, that go through one after the other.
        hop: From one stage to the next.
        grid: Slices end at multiples of this many tokens, and at the end.
    """

    cost: SliceCost
    length: int
    stages: int
    microbatches: int = 1
    hop: float = 0.0
    grid: int = 1

    def __post_init__(self) -> None:
        check_sizes(
            length=self.length,
            stages=self.stages,
            microbatches=self.microbatches,
            grid=self.grid,
        )
        if not 0 <= self.hop < float("inf"):
            raise ValueError(f"hop must be finite and not negative; found {self.hop}")

    def evaluate(self, lengths: Sequence[int]) -> SlicePlan:
        """The plan with these lengths.

        Raises:
            ValueError: If they do not sum to the length, or a cost is negative or no number.
        """
        if sum(lengths) != self.length or min(lengths) < 1:
            raise ValueError(
                f"slices of at least one token must sum to {self.length} tokens; found "
                f"{' + '.join(map(str, lengths))} = {sum(lengths)}"
            )
        tokens = np.array(lengths)
        costs = _checked(self.cost, tokens, np.cumsum(tokens) - tokens)
        return SlicePlan(
            lengths=tuple(lengths),
            costs=tuple(float(each) for each in costs),
            time=self.time(float(costs.sum()), float(costs.max())),
        )

    def equal(self, num_slices: int) -> SlicePlan | None:
        """Slices of equal length, up to one step of the grid; None if there are too many."""
        cells = -(-self.length // self.grid)
        if num_slices > cells:
            return None
        ends = [self._end(round(cells * number / num_slices)) for number in range(num_slices + 1)]
        return self.evaluate([stop - start for start, stop in itertools.pairwise(ends)])

    def _end(self, cell: int) -> int:
        return min(self.length, cell * self.grid)

    def time(self, total: float, longest: float) -> float:
        """How long slices take whose costs have this sum and this largest one."""
        return self.microbatches * total + (self.stages - 1) * (longest + self.hop)


def plan_slices(
    problem: SliceProblem, *, num_slices: int | None = None, max_lengths: int | None = None
) -> SlicePlan:
    """The fastest slices.

    Args:
        problem: What is to be cut.
        num_slices: Exactly so many slices; by default as many as are best.
        max_lengths: At most so many different lengths, since each is a program to compile. With 1
            the result is the best equal split; with more it is found by local search from several
            starts, and may not be the very best. The last slice may be a shorter one.

    Raises:
        TypeError, ValueError: If a number is no integer or below 1, there are fewer tokens than
            slices, or costs are negative or no numbers.

    Example:
        >>> from jaxpipe.plan.slice_cost import parse_cost
        >>> cost = parse_cost("l * (2 * ctx + l + 1) / 2")  # the sum of the positions
        >>> plan_slices(SliceProblem(cost=cost, length=12, stages=3), num_slices=3)
        SlicePlan(lengths=(7, 3, 2), costs=(28.0, 27.0, 23.0), time=134.0)
    """
    check_sizes(
        **{
            name: value
            for name, value in (("num_slices", num_slices), ("max_lengths", max_lengths))
            if value is not None
        }
    )
    cells = -(-problem.length // problem.grid)
    if num_slices is not None and num_slices > cells:
        raise ValueError(
            f"{problem.length} tokens on a grid of {problem.grid} make at most {cells} slices; "
            f"found num_slices={num_slices}"
        )
    ends, costs = _cost_matrix(problem, problem.cost)
    if max_lengths is None:
        return problem.evaluate(np.diff(ends[_best_ends(problem, costs, num_slices)]).tolist())
    return _few_lengths(problem, costs, ends, num_slices, max_lengths)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """A way to cut a batch into groups of sequences, and each group into slices.

    Attributes:
        groups: Sequences of each group, and the lengths of its slices.
        time: All groups through all stages.
    """

    groups: tuple[tuple[int, tuple[int, ...]], ...]
    time: float


def plan_batch(
    problem: SliceProblem, batch_size: int, cost_of: Callable[[int], SliceCost]
) -> BatchPlan:
    """The fastest groups of sequences, each cut into slices of its own (section 3.4).

    Args:
        problem: What is to be cut; its `cost` and `microbatches` are of no use here.
        batch_size: Sequences in all.
        cost_of: For a number of sequences that run together, what their slices take.

    Raises:
        TypeError, ValueError: If a number is no integer or below 1, or a cost is negative or none.

    Example:
        >>> from jaxpipe.plan.slice_cost import parse_cost
        >>> problem = SliceProblem(cost=parse_cost("l"), length=8, stages=2, grid=4)
        >>> plan_batch(problem, 3, lambda size: parse_cost(f"1 + {size} * l"))
        BatchPlan(groups=((1, (4, 4)), (1, (4, 4)), (1, (4, 4))), time=35.0)
    """
    check_sizes(batch_size=batch_size)
    problem = dataclasses.replace(problem, microbatches=1)
    sizes = range(1, batch_size + 1)
    matrices = [_cost_matrix(problem, cost_of(size)) for size in sizes]
    ends = matrices[0][0]

    def least_sum(bound: float) -> Found | None:
        of_size = {size: _least_sum(matrices[size - 1][1], bound) for size in sizes}
        # The best groups for 0, 1, 2, ... sequences: sum, longest slice, groups.
        best: list[tuple[float, float, tuple] | None] = [(0.0, 0.0, ())]
        for total in sizes:
            options = []
            for size in range(1, total + 1):
                rest, mine = best[total - size], of_size[size]
                if rest is not None and mine is not None:
                    groups = (*rest[2], (size, mine[2]))
                    options.append((rest[0] + mine[0], max(rest[1], mine[1]), groups))
            best.append(min(options, key=lambda each: each[0]) if options else None)
        return best[-1]

    every = [costs[np.isfinite(costs)] for _, costs in matrices]
    groups = _search(problem, np.unique(np.concatenate(every)), least_sum)
    plans = [(size, tuple(np.diff(ends[cells]).tolist())) for size, cells in groups]
    costs = [
        dataclasses.replace(problem, cost=cost_of(size)).evaluate(lengths).costs
        for size, lengths in plans
    ]
    total, longest = sum(map(sum, costs)), max(map(max, costs))
    return BatchPlan(groups=tuple(plans), time=problem.time(total, longest))


def _cost_matrix(problem: SliceProblem, cost: SliceCost) -> tuple[np.ndarray, np.ndarray]:
    """The cells' ends in tokens, and the cost of a slice from one end to another."""
    cells = -(-problem.length // problem.grid)
    ends = np.minimum(np.arange(cells + 1) * problem.grid, problem.length)
    starts, stops = np.triu_indices(cells + 1, 1)
    costs = np.full((cells + 1, cells + 1), np.inf)
    costs[starts, stops] = _checked(cost, ends[stops] - ends[starts], ends[starts])
    return ends, costs


def equal_splits(problem: SliceProblem, numbers: Iterable[int]) -> list[SlicePlan]:
    """The equal splits into these numbers of slices, where there are enough tokens."""
    plans = [problem.equal(number) for number in numbers]
    return [plan for plan in plans if plan is not None]


def _checked(cost: SliceCost, lengths: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """The costs, if all are finite and not negative."""
    with np.errstate(all="ignore"):
        costs = np.asarray(cost(lengths, contexts), float)
    bad = ~((costs >= 0) & (costs < np.inf))
    if bad.any():
        place = int(np.argmax(bad))
        raise ValueError(
            f"a slice must cost a finite time that is not negative, but {lengths[place]} tokens "
            f"behind {contexts[place]} others cost {costs[place]}"
        )
    return costs


Found = tuple[float, float, Any]
"""The least sum under a bound, the longest slice in it, and the solution."""


def _search(
    problem: SliceProblem, bounds: np.ndarray, least_sum: Callable[[float], Found | None]
) -> Any:
    """The solution of the best bound on the longest slice; None if there is none at all.

    Args:
        problem: Says what a sum and a longest slice are worth.
        bounds: All costs that a longest slice may have, ascending.
        least_sum: Solves for a bound; None if that can't be done.
    """
    best: Any = None
    least = np.inf

    def solve(bound: float) -> Found | None:
        nonlocal best, least
        found = least_sum(bound)
        if found is not None and problem.time(*found[:2]) < least:
            least, best = problem.time(*found[:2]), found[2]
        return found

    widest = solve(float(bounds[-1])) if len(bounds) else None
    # Intervals of bounds `low..high`, with the least sum under `high`: no sum in them is less.
    intervals = [(0, len(bounds) - 1, widest[0])] if widest else []
    while intervals:
        low, high, total = intervals.pop()
        if low > high or problem.time(total, float(bounds[low])) >= least * (1 - 1e-12):
            continue
        middle = (low + high) // 2
        found = solve(float(bounds[middle]))
        if found is not None:
            # Bounds between the longest slice and this bound give the same solution.
            first = int(np.searchsorted(bounds, found[1]))
            intervals.append((low, min(first, middle) - 1, found[0]))
        intervals.append((middle + 1, high, total))
    return best


def _best_ends(
    problem: SliceProblem, costs: np.ndarray, num_slices: int | None = None
) -> list[int] | None:
    """The ends of the best slices, in cells."""

    def least_sum(bound: float) -> Found | None:
        return _least_sum(costs, bound, num_slices)

    return _search(problem, np.unique(costs[np.isfinite(costs)]), least_sum)


def _least_sum(costs: np.ndarray, bound: float, num_slices: int | None = None) -> Found | None:
    """The ends of the slices within a bound that have the least sum."""
    allowed = np.where(costs <= bound, costs, np.inf)
    ends = _fewest(allowed) if num_slices is None else _exactly(allowed, num_slices)
    if ends is None:
        return None
    chosen = costs[ends[:-1], ends[1:]]
    return float(chosen.sum()), float(chosen.max()), ends


def _fewest(costs: np.ndarray) -> list[int] | None:
    """The ends of the slices with the least sum; None if there are none."""
    count = len(costs)
    sums = np.full(count, np.inf)
    sums[0] = 0.0
    before = np.zeros(count, int)
    columns = np.ascontiguousarray(costs.T)
    for stop in range(1, count):
        found = sums[:stop] + columns[stop, :stop]
        before[stop] = place = int(found.argmin())
        sums[stop] = found[place]
    if not np.isfinite(sums[-1]):
        return None
    ends = [count - 1]
    while ends[-1]:
        ends.append(int(before[ends[-1]]))
    return ends[::-1]


def _exactly(costs: np.ndarray, num_slices: int) -> list[int] | None:
    """Likewise, for a number of slices."""
    count = len(costs)
    sums = np.full(count, np.inf)
    sums[0] = 0.0
    before = []
    for _ in range(num_slices):
        found = sums[:, None] + costs
        before.append(found.argmin(axis=0))
        sums = found.min(axis=0)
    if not np.isfinite(sums[-1]):
        return None
    ends = [count - 1]
    for place in reversed(before):
        ends.append(int(place[ends[-1]]))
    return ends[::-1]


def _few_lengths(
    problem: SliceProblem,
    costs: np.ndarray,
    ends: np.ndarray,
    num_slices: int | None,
    max_lengths: int,
) -> SlicePlan:
    """The best slices found whose lengths are few."""
    cells = len(ends) - 1
    distance = np.arange(cells + 1)[None, :] - np.arange(cells + 1)[:, None]
    tried: dict[tuple[int, ...], SlicePlan | None] = {}

    def attempt(lengths: Iterable[int]) -> SlicePlan | None:
        wanted = tuple(sorted({min(max(1, each), cells) for each in lengths}))
        if wanted not in tried:
            allowed = np.where(np.isin(distance, wanted), costs, np.inf)
            found = _best_ends(problem, allowed, num_slices)
            plan = problem.evaluate(np.diff(ends[found]).tolist()) if found else None
            if plan is not None and len(set(plan.lengths)) > max_lengths:
                plan = None  # the last cell is shorter, and its slice has a length of its own
            tried[wanted] = plan
        return tried[wanted]

    def better(one: SlicePlan | None, other: SlicePlan | None) -> bool:
        return one is not None and (other is None or one.time < other.time * (1 - 1e-12))

    counts = range(1, cells + 1) if num_slices is None else [num_slices]
    starts = [[cells // count, -(-cells // count)] for count in counts]
    if max_lengths == 1:
        starts = [[each] for each in range(1, cells + 1)]
    else:
        free = np.diff(_best_ends(problem, costs, num_slices) or [0, cells])
        quantiles = np.quantile(free, np.linspace(0, 1, max_lengths))
        starts = [*sorted(starts, key=lambda each: abs(each[0] - free.mean()))[:8], quantiles]
    best: SlicePlan | None = None
    chosen: list[int] = []
    for start in starts:
        lengths = [round(float(each)) for each in start]
        if better(attempt(lengths), best):
            best, chosen = attempt(lengths), lengths
    improves = max_lengths > 1 and best is not None
    while improves:
        improves = False
        chosen = (chosen + [chosen[-1]] * max_lengths)[:max_lengths]
        for place in range(max_lengths):
            for step in (-8, -4, -2, -1, 1, 2, 4, 8):
                other = [*chosen[:place], chosen[place] + step, *chosen[place + 1 :]]
                if better(attempt(other), best):
                    best, chosen, improves = attempt(other), other, True
    if best is None:
        raise ValueError(
            f"no slices of at most {max_lengths} different lengths make {problem.length} tokens on "
            f"a grid of {problem.grid}; allow one more, or use a grid that divides the length"
        )
    return best
