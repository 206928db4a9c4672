"""Layers to stages: contiguous, and the most loaded stage as light as can be.

A pipeline goes at the pace of its slowest stage. Given what each layer weighs (time, parameters,
bytes), the partition found here is exact: no other contiguous one has a lighter heaviest stage.

For a bound on the stages, the ends that each stage can reach follow from those of the stage before
it. A bound that is enough is lowered to the heaviest stage it leads to; one that is not is raised
to the least load that would let some stage take one layer more (Pinar, Aykanat, 2004, Fast optimal
load balancing algorithms for 1D partitioning, section 4). Both only ever name loads that occur, and
halving the interval between them brings them together fast.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from jaxpipe.schedule.sizes import check_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
    """Contiguous stages.

    Attributes:
        bounds: Where each stage begins, and the end: stage `s` has the layers `bounds[s]` to
            `bounds[s + 1] - 1`.
        loads: What each stage weighs, divided by the speed of its device.
    """

    bounds: tuple[int, ...]
    loads: tuple[float, ...]

    @property
    def heaviest(self) -> float:
        """The load of the most loaded stage."""
        return max(self.loads)

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return tuple(stop - start for start, stop in itertools.pairwise(self.bounds))


def partition(
    weights: Sequence[int | float],
    num_stages: int,
    *,
    speeds: Sequence[int | float] | None = None,
) -> Partition:
    """The contiguous partition whose most loaded stage is the lightest.

    Every stage gets a layer at least. Between partitions with the same heaviest stage, the stages
    in front are the fuller ones.

    Args:
        weights: What each layer weighs, in model order, in any one unit.
        num_stages: How many stages.
        speeds: How fast the device of each stage is; equal by default. A load is a sum of weights
            divided by the speed.

    Raises:
        TypeError, ValueError: If there are fewer layers than stages, a weight is negative or no
            number, or a speed is not positive.

    Example:
        >>> partition([3, 1, 4, 1, 5, 9, 2, 6], 3)
        Partition(bounds=(0, 5, 7, 8), loads=(14.0, 11.0, 6.0))
    """
    check_sizes(num_stages=num_stages)
    count = len(weights)
    if count < num_stages:
        raise ValueError(
            f"{count} layers can't fill {num_stages} stages; use at most {count} stages"
        )
    for place, weight in enumerate(weights):
        if not 0 <= weight < float("inf"):
            raise ValueError(
                f"weights must be finite and not negative, but layer {place} weighs {weight}"
            )
    rates = [1.0] * num_stages if speeds is None else [float(speed) for speed in speeds]
    if len(rates) != num_stages or not all(0 < rate < float("inf") for rate in rates):
        raise ValueError(
            f"speeds must be {num_stages} positive numbers, one for each stage; found "
            f"{list(speeds or ())}"
        )
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(weights, float))])
    return _best(_Layers(sums, rates))


@dataclasses.dataclass(frozen=True)
class _Layers:
    """Sums of the weights of the first 0, 1, ... layers, and the speed of each stage."""

    sums: np.ndarray
    rates: list[float]

    def loads(self, stage: int, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        return (self.sums[stops] - self.sums[starts]) / self.rates[stage]

    def furthest(self, stage: int, starts: np.ndarray, bound: float) -> np.ndarray:
        """How far a stage that begins there may reach within a bound."""
        count = len(self.sums) - 1
        limits = self.sums[starts] + bound * self.rates[stage]
        stops = np.maximum(np.searchsorted(self.sums, limits, side="right") - 1, starts)
        # Products and quotients round differently: the load itself decides.
        for step in (1, -1):
            while True:
                others = np.minimum(stops + (step > 0), count)
                fits = self.loads(stage, starts, others) <= bound
                moves = fits & (others > stops) if step > 0 else ~fits & (stops > starts)
                if not moves.any():
                    break
                stops = stops + step * moves
        return stops

    def split(self, bound: float) -> tuple[list[int] | None, float]:
        """Stages within a bound.

        Returns:
            Their bounds, or None if there are none, and the least load above the bound that any
            stage would have with one layer more.
        """
        count, num_stages = len(self.sums) - 1, len(self.rates)
        reached = [np.array([0])]
        more = np.inf
        for stage in range(num_stages):
            starts = reached[-1]
            stops = self.furthest(stage, starts, bound)
            short = stops < count
            if short.any():
                more = min(more, self.loads(stage, starts[short], stops[short] + 1).min())
            # Every layer behind a start is an end, up to the furthest: +1 there, -1 behind it.
            steps = np.bincount(starts + 1, minlength=count + 2)
            steps -= np.bincount(stops + 1, minlength=count + 2)
            ends = np.flatnonzero(np.cumsum(steps)[: count + 1])
            last = count - (num_stages - stage - 1)
            reached.append(ends[(ends > stage) & (ends <= last)])
            if not len(reached[-1]):
                return None, more
        if reached[-1][-1] != count:
            return None, more
        bounds = [count]
        for stage in reversed(range(num_stages)):
            starts = reached[stage][reached[stage] < bounds[-1]]
            fits = self.loads(stage, starts, np.full(len(starts), bounds[-1])) <= bound
            bounds.append(int(starts[fits][-1]))
        return bounds[::-1], more


def _best(layers: _Layers) -> Partition:
    def within(bound: float) -> tuple[Partition | None, float]:
        bounds, more = layers.split(bound)
        if bounds is None:
            return None, more
        ends = np.array(bounds)
        loads = layers.sums[ends[1:]] - layers.sums[ends[:-1]]
        loads = tuple((loads / np.array(layers.rates)).tolist())
        return Partition(bounds=tuple(bounds), loads=loads), more

    best, _ = within(float(layers.sums[-1]) / min(layers.rates))
    assert best is not None, "within the sum of all layers everything fits"
    low = 0.0
    while low < best.heaviest:
        found, more = within(low + (best.heaviest - low) / 2)
        if found is not None and found.heaviest < best.heaviest:
            best = found
        elif found is None:
            low = more
        else:  # the interval is as small as numbers can tell
            found, _ = within(low)
            best = found or best
            break
    return best
