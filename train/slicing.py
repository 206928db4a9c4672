"""Into which token slices a run cuts its sequences."""

import numpy as np

from jaxpipe.plan import SliceCost, SlicePlan, SliceProblem, plan_slices
from models.config import GPTConfig
from models.flops import flops_of_slice
from train.config import Config

MOST_SLICES = 16
"""More are rarely faster, and every slice has programs of its own to compile."""

OVERHEAD = 128
"""What a slice costs beyond its FLOPs, in tokens: fewer do not keep an accelerator busy (Li et al.,
arXiv 2102.07988, figure 3, finds times flat below 256 tokens on a V100)."""


def choose_slices(config: Config) -> int | tuple[int, ...] | None:
    """What `pipeline.slices` asks for; for `auto`, the lengths that FLOPs suggest.

    The choice depends on the config alone, so that all processes, and a run that is resumed, make
    the same one. `python -m train.slice` measures instead.
    """
    slices = config.pipeline.slices
    if slices != "auto":
        return slices
    return best_slices(slice_problem(config, estimated_cost(config.model))).lengths


def slice_problem(config: Config, cost: SliceCost, grid: int | None = None) -> SliceProblem:
    """What the slices of a run are to be good for.

    Args:
        config: The run.
        cost: What a slice takes in one stage.
        grid: Lengths are multiples of this; by default of about a 32nd of the sequence.
    """
    length = config.data.sequence_length
    return SliceProblem(
        cost=cost,
        length=length,
        stages=config.mesh.pipe,
        microbatches=config.pipeline.num_microbatches,
        grid=2 ** max(0, (length // 32).bit_length() - 1) if grid is None else grid,
    )


def best_slices(problem: SliceProblem, max_lengths: int | None = None) -> SlicePlan:
    """The fastest of up to `MOST_SLICES` slices."""
    cells = -(-problem.length // problem.grid)
    plans = []
    for count in range(1, min(MOST_SLICES, cells) + 1):
        try:
            plans.append(plan_slices(problem, num_slices=count, max_lengths=max_lengths))
        except ValueError:
            if max_lengths is None:
                raise  # not for lack of so few different lengths
    return min(plans, key=lambda plan: plan.time)


def estimated_cost(model: GPTConfig) -> SliceCost:
    """The FLOPs of a block on a slice, and `OVERHEAD`."""

    def cost(lengths: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        overhead = OVERHEAD * flops_of_slice(model, np.ones_like(lengths), np.zeros_like(lengths))
        return flops_of_slice(model, lengths, contexts) + overhead

    return cost
