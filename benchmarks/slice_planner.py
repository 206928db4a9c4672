"""The slice planner: how long it searches, and what it makes of TeraPipe's published numbers.

    python benchmarks/slice_planner.py

Nothing is measured on accelerators. The first table shows the CPU time of exact searches over 2048
tokens on a grid of 8, and the best equal split beside them. The second fits the cost of a slice in
one stage,

    t(l, ctx) = a0 + a1 max(l, l0) + a2 l (ctx + l / 2)

to the seven published times of GPT-3 175B in equal slices (Li et al., arXiv 2102.07988: 96 stages
of 4 V100s, 2 sequences), and lets the planner find better ones. The third predicts other settings
from the same four constants, scaled by the FLOPs of their layers; nothing is fitted there. What a
slice costs whatever its length is scaled in two ways, since the published times do not tell them
apart: as launches and latencies, which every layer has alike, or as the reading of its weights.
Stages and sequences of the 13B model are 40 and 32, 8, 4, 2 (the paper's setting 5).
"""

import argparse
import dataclasses
import time

import numpy as np

from jaxpipe.plan import SliceProblem, equal_splits, parse_cost, plan_slices

# Equal slices of 2048 tokens -> seconds of a step.
PUBLISHED = {1: 9.990, 4: 2.902, 8: 1.892, 16: 1.547, 32: 1.593, 64: 2.227, 128: 3.252}
PUBLISHED_BEST = 1.481

# Name, published speed-up, stages by those of the fit, and (tokens, stages, sequences).
SMALL = {"layers": 1, "width": 5120 / 12288, "tensor": 2}
SETTINGS = (
    ("175B, 96 stages x 4", 6.75, {"layers": 1, "width": 1, "tensor": 1}, (2048, 96, 2)),
    ("175B, 48 stages x 8", 5.02, {"layers": 2, "width": 1, "tensor": 2}, (2048, 48, 2)),
    ("13B, 2048 tokens", 1.40, SMALL, (2048, 40, 32)),
    ("13B, 4096 tokens", 2.77, SMALL, (4096, 40, 8)),
    ("13B, 6144 tokens", 4.97, SMALL, (6144, 40, 4)),
    ("13B, 8192 tokens", 7.83, SMALL, (8192, 40, 2)),
)

COSTS = (
    "1 + l",
    "20 + l * (1 + ctx / 4000 + l / 8000)",
    "max(100, l) * (1 + (ctx + l / 2) / 3000)",
)


@dataclasses.dataclass(frozen=True)
class StageCost:
    """Seconds of one stage, forward and backward, for a slice.

    Attributes:
        fixed: Per slice.
        per_token: Per token, at least of `shortest`.
        per_pair: Per token and token attended to.
        shortest: Fewer tokens take as long as these.
    """

    fixed: float
    per_token: float
    per_pair: float
    shortest: float

    def __call__(self, lengths: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        """The cost of slices."""
        return self.features(lengths, contexts) @ [self.fixed, self.per_token, self.per_pair]

    def features(self, lengths: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        """What the three constants multiply."""
        pairs = lengths * (contexts + lengths / 2)
        tokens = np.maximum(lengths, self.shortest)
        return np.stack([np.ones_like(pairs), tokens, pairs], axis=-1)

    def scaled(
        self, *, layers: float, width: float, tensor: float, by_weights: bool
    ) -> "StageCost":
        """The cost of stages with so many times the layers, width and devices per layer."""
        return dataclasses.replace(
            self,
            fixed=self.fixed * layers * (width**2 / tensor if by_weights else 1),
            per_token=self.per_token * layers * width**2 / tensor,
            per_pair=self.per_pair * layers * width / tensor,
        )


def setting(cost: StageCost, length: int, stages: int, sequences: int) -> SliceProblem:
    """One of the paper's settings."""
    return SliceProblem(cost=cost, length=length, stages=stages, microbatches=sequences, grid=8)


def fit() -> StageCost:
    """The constants that come closest to the published times, relative to each."""
    best, least = None, np.inf
    for shortest in range(0, 513, 8):
        shape = StageCost(0.0, 0.0, 0.0, shortest)
        rows = []
        for number, seconds in PUBLISHED.items():
            lengths = np.full(number, 2048 / number)
            features = shape.features(lengths, np.cumsum(lengths) - lengths)
            # 2 sequences through 96 stages; the last slice is the longest.
            rows.append((2 * features.sum(axis=0) + 95 * features[-1]) / seconds)
        constants, *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
        error = np.abs(np.array(rows) @ constants - 1).max()
        if error < least and (constants >= 0).all():
            fixed, per_token, per_pair = map(float, constants)
            best, least = StageCost(fixed, per_token, per_pair, shortest), error
    assert best is not None
    return best


def main() -> None:
    """Prints the tables."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    print(
        f"{'cost of a slice':<44}{'stages':>7}{'search':>9}{'slices':>8}{'best equal / best':>19}"
    )
    for expression in COSTS:
        for stages in (8, 48, 96):
            problem = SliceProblem(cost=parse_cost(expression), length=2048, stages=stages, grid=8)
            begin = time.process_time()
            plan = plan_slices(problem)
            seconds = time.process_time() - begin
            equal = min(each.time for each in equal_splits(problem, range(1, 257)))
            count = len(plan.lengths)
            print(
                f"{expression:<44}{stages:>7}{seconds:>7.3f} s{count:>8}{equal / plan.time:>19.4f}"
            )

    cost = fit()
    print(
        f"\nfit: a0 {cost.fixed * 1e3:.3g} ms, a1 {cost.per_token * 1e6:.3g} us, "
        f"a2 {cost.per_pair * 1e9:.3g} ns, l0 {cost.shortest:g} tokens"
    )
    problem = setting(cost, 2048, 96, 2)
    print(f"{'GPT-3 175B, 96 stages x 4':<28}{'published':>11}{'fitted':>9}")
    for each in equal_splits(problem, PUBLISHED):
        number = len(each.lengths)
        print(f"{f'{number} equal slices':<28}{PUBLISHED[number]:>9.3f} s{each.time:>7.3f} s")
    plan = plan_slices(problem)
    shape = f"best: {len(plan.lengths)}, {max(plan.lengths)} to {min(plan.lengths)}"
    print(f"{shape:<28}{PUBLISHED_BEST:>9.3f} s{plan.time:>7.3f} s")

    print(f"\n{'speed-up by slices':<28}{'published':>11}{'launches':>11}{'weights':>11}")
    for name, published, changes, sizes in SETTINGS:
        cells = []
        for by_weights in (False, True):
            length, stages, sequences = sizes
            scaled = cost.scaled(**changes, by_weights=by_weights)
            each = setting(scaled, length, stages, sequences)
            cells.append(each.evaluate([each.length]).time / plan_slices(each).time)
        print(f"{name:<28}{published:>10.2f}x{cells[0]:>10.2f}x{cells[1]:>10.2f}x")


if __name__ == "__main__":
    main()
