"""Whole runs: twenty steps of an optimizer lead through the same losses for every layout."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest

from jaxpipe.runtime import FunctionalPipeline, make_mesh, plain
from tests.runtime.toy import toy_batch, toy_model, toy_params

NUM_LAYERS, NUM_STEPS = 5, 20
OPTIMIZERS = {
    "adamw": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01)),
    "sgd": lambda: optax.sgd(0.3, momentum=0.9),
}


def run_pipeline(pipeline: FunctionalPipeline, params: Any, batch: Any, key: jax.Array) -> tuple:
    (_, means), grads = pipeline.value_and_grad(params, batch, key)
    return means, grads


@functools.cache
def train(optimizer: str, dtype: str, mesh: tuple[int, int] | None) -> tuple[float, ...]:
    """The loss of every step; without a mesh, those of the unpipelined program."""
    update = OPTIMIZERS[optimizer]()
    params: Any = toy_params(NUM_LAYERS, dtype)
    if mesh is None:
        run = functools.partial(plain.value_and_grad, toy_model(NUM_LAYERS))
    else:
        pipeline = FunctionalPipeline(
            toy_model(NUM_LAYERS), mesh=make_mesh(*mesh), num_microbatches=3
        )
        params = pipeline.to_pipeline(params)
        run = functools.partial(run_pipeline, pipeline)

    @jax.jit
    def step(params, state, batch, key):
        result: Any = run(params, batch, key)
        means, grads = result
        # optax promotes dtypes now and then.
        with jax.numpy_dtype_promotion("standard"):
            changes, state = update.update(grads, state, params)
            params = optax.apply_updates(params, changes)
        return params, state, means.loss

    with jax.numpy_dtype_promotion("standard"):
        state = update.init(params)
    losses = []
    for number in range(NUM_STEPS):
        batch = toy_batch(8, dtype, seed=number % 4)
        params, state, loss = step(
            params, state, batch, jax.random.fold_in(jax.random.key(0), number)
        )
        losses.append(float(loss))
    return tuple(losses)


MESHES = pytest.mark.parametrize("mesh", [(1, 1), (2, 1), (4, 1), (2, 2)], ids=str)


@MESHES
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_twenty_steps_in_float64(float64, optimizer, mesh):
    losses, expected = train(optimizer, "float64", mesh), train(optimizer, "float64", None)
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    assert expected[-4:] < expected[:4]  # it learns


@MESHES
def test_twenty_steps_in_float32(mesh):
    losses, expected = train("sgd", "float32", mesh), train("sgd", "float32", None)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
