"""How often the parts of the model really run.

Idle ticks must cost nothing, and no forward may run twice unless recomputation asks for it. What
runs is counted by a callback that is as pure as the computation around it: the compiler may move it
out of a conditional, or repeat it, just as it may the matmuls. (It once moved the whole stage out
of the conditional, and ran it in every tick.)
"""

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime import FunctionalPipeline, LayeredModel, engine, make_mesh
from tests.runtime import toy
from tests.runtime.toy import toy_batch, toy_model, toy_params

NUM_LAYERS, NUM_MICROBATCHES, NUM_STAGES = 6, 5, 4


def counted(counts: collections.Counter[str], name: str, part: Callable) -> Callable:
    """The part, counting its runs in a value that its result depends on and its gradient not."""

    def count(_: Any) -> np.ndarray:
        counts[name] += 1
        return np.zeros((), np.float32)

    def run(*arguments: Any) -> Any:
        result = part(*arguments)
        h = result["h"] if isinstance(result, dict) else result
        seen = jax.lax.stop_gradient(jnp.ravel(h)[0])
        h = h + jax.pure_callback(count, jax.ShapeDtypeStruct((), np.float32), seen)
        return {**result, "h": h} if isinstance(result, dict) else h

    return run


def counted_model(counts: collections.Counter[str]) -> LayeredModel:
    return toy_model(
        NUM_LAYERS,
        embed=counted(counts, "embed", toy.embed),
        block=counted(counts, "block", toy.block),
        head=counted(counts, "head", toy.head),
    )


def make_pipeline(counts: collections.Counter[str], **options: Any) -> FunctionalPipeline:
    return FunctionalPipeline(
        counted_model(counts),
        mesh=make_mesh(NUM_STAGES),
        num_microbatches=NUM_MICROBATCHES,
        **options,
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("remat", "times"), [("none", 1), ("selective", 1), ("full", 2)])
def test_every_part_runs_once_per_microbatch(remat, times, schedule):
    counts: collections.Counter[str] = collections.Counter()
    pipeline = make_pipeline(counts, schedule=schedule, remat=remat)
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    step = jax.jit(engine.value_and_grad(pipeline.spec, pipeline.sizes))
    jax.block_until_ready(step(pipeline.table, params, toy_batch(10, "float32"), None))
    assert counts == {
        "embed": NUM_MICROBATCHES,
        "block": NUM_MICROBATCHES * NUM_LAYERS * times,
        "head": NUM_MICROBATCHES,
    }


@pytest.mark.parametrize("layers_per_stage", [None, (2, 2, 1, 1)], ids=["balanced", "given"])
def test_the_circular_forward_runs_nothing_in_idle_ticks(layers_per_stage):
    counts: collections.Counter[str] = collections.Counter()
    pipeline = make_pipeline(counts, layers_per_stage=layers_per_stage)
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    jax.block_until_ready(pipeline.evaluate(params, toy_batch(10, "float32")))
    assert counts == {
        "embed": NUM_MICROBATCHES,
        "block": NUM_MICROBATCHES * NUM_LAYERS,
        "head": NUM_MICROBATCHES,
    }
