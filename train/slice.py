"""Measures what token slices cost on this device, and cuts the sequences of a config accordingly.

    python -m train.slice configs/gpt_tiny.yaml
    python -m train.slice configs/gpt_tiny.yaml --max_lengths 2 --json
    python -m train.slice configs/gpt_tiny.yaml --grid 8 --mesh.pipe 2

Times the forward and backward of a stage on slices of some lengths, with and without earlier tokens
to attend to, fits the model of TeraPipe (`jaxpipe.plan.slice_cost`) to them and searches for the
fastest slices (`jaxpipe.plan.slices`). What is printed goes into the config as `pipeline.slices`.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxpipe.plan import equal_splits, fit_cost, slices_table
from train.build import build_pipeline
from train.config import Config, parse_arguments
from train.devices import simulate_devices
from train.slicing import MOST_SLICES, best_slices, estimated_cost, slice_problem
from train.user_error import UserError


def points(length: int) -> list[tuple[int, int]]:
    """Slice lengths and contexts to measure, for sequences of so many tokens."""
    eighth, quarter, half = (max(1, length // part) for part in (8, 4, 2))
    found = [(eighth, 0), (quarter, 0), (half, 0), (length, 0)]
    found += [(eighth, quarter), (eighth, half), (quarter, half), (half, quarter), (half, half)]
    return sorted({(tokens, context) for tokens, context in found if tokens + context <= length})


def measure(config: Config, tokens: int, context: int) -> float:
    """Seconds that the slowest stage takes for forward and backward of a slice.

    Args:
        config: The run.
        tokens: Tokens of the slice.
        context: Tokens before it.
    """
    pipeline = build_pipeline(
        dataclasses.replace(
            config,
            pipeline=dataclasses.replace(
                config.pipeline,
                schedule="terapipe",
                num_chunks=None,
                slices=(context, tokens) if context else 1,
            ),
            data=dataclasses.replace(config.data, sequence_length=context + tokens),
        )
    )
    shape = (config.training.batch_size, context + tokens)
    batch = {
        "tokens": jax.ShapeDtypeStruct(shape, jnp.int32),
        "targets": jax.ShapeDtypeStruct(shape, jnp.int32),
        "weights": jax.ShapeDtypeStruct(shape, jnp.float32),
    }
    costs = pipeline.measure(pipeline.param_shapes, batch, jax.random.key(config.seed))
    of_stages = [sum(both) for both in zip(*(of for _, of in costs.by_stage), strict=True)]
    return max(of_stages) * (costs.slice_shares[-1] if costs.slice_shares else 1.0)


def main(arguments: Sequence[str]) -> int:
    """Runs the program and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m train.slice",
        usage="python -m train.slice CONFIG [--grid N] [--max_lengths N] [--json] [--a.b VALUE]",
        description="Measures what token slices cost on this device, and cuts sequences "
        "accordingly.",
        allow_abbrev=False,
    )
    parser.add_argument("--grid", type=int, help="slice lengths are multiples of this")
    parser.add_argument("--max_lengths", type=int, help="at most so many different lengths")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    said, rest = parser.parse_known_args(arguments)
    try:
        config = parse_arguments("train.slice", rest).config
        slice_problem(config, estimated_cost(config.model), said.grid)  # checked before it is long
        simulate_devices(config.mesh)
        measured = []
        for tokens, context in points(config.data.sequence_length):
            seconds = measure(config, tokens, context)
            measured.append((float(tokens), float(context), seconds))
            line = f"{tokens} tokens behind {context}: {seconds * 1e3:.3g} ms"
            print(line, file=sys.stderr, flush=True)
        problem = slice_problem(config, fit_cost(measured), said.grid)
        plan = best_slices(problem, said.max_lengths)
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    equal = equal_splits(problem, (1, 2, 4, 8, MOST_SLICES))
    if said.json:
        found = {
            "lengths": list(plan.lengths),
            "time": plan.time,
            "costs": list(plan.costs),
            "measured": [dict(zip(("l", "ctx", "time"), row, strict=True)) for row in measured],
            "equal": [{"num_slices": len(each.lengths), "time": each.time} for each in equal],
        }
        print(json.dumps(found))
        return 0
    print(slices_table(plan, equal))
    print(f"\npipeline:\n  slices: {list(plan.lengths)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
