"""Any pytree travels from stage to stage, and comes out as it went in."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.runtime import FunctionalPipeline, LayeredModel, Params, make_mesh
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit
from tests.runtime.toy import LENGTH, WIDTH, toy_batch, toy_model, toy_params

NUM_LAYERS = 4


class Stream(NamedTuple):
    """What travels: some of it has a gradient, some has none, some is nothing."""

    h: jax.Array
    frozen: jax.Array
    mask: jax.Array
    positions: jax.Array
    nothing: None = None


def model() -> LayeredModel:
    def embed(outer, batch, keys):
        h = outer["table"][batch["tokens"]]
        positions = jnp.broadcast_to(jnp.arange(LENGTH, dtype="int32"), batch["tokens"].shape)
        mask = batch["tokens"] % 2 == 0
        return Stream(h, jax.lax.stop_gradient(h) + 1, mask, positions)

    def block(params, x, batch, keys):
        assert isinstance(x, Stream)
        assert (x.mask.dtype, x.positions.dtype) == (jnp.bool_, jnp.int32)
        hidden = jnp.tanh(x.h @ params["up"]) @ params["down"] * params["scale"]
        step = jnp.where(x.mask[..., None], hidden, x.frozen)
        h = x.h + step * (1 + x.positions[..., None]).astype(x.h.dtype)
        # The frozen part keeps changing, and never lets a gradient through.
        return x._replace(h=h, frozen=jax.lax.stop_gradient(jnp.sin(h)))

    def head(outer, x, batch, keys):
        return (x.h * outer["gain"]) @ outer["table"].T

    return toy_model(NUM_LAYERS, embed=embed, block=block, head=head)


@pytest.mark.parametrize("remat", ["none", "selective", "full"])
@pytest.mark.parametrize("num_stages", [1, 4])
def test_named_tuples_masks_integers_none_and_frozen_values(float64, num_stages, remat):
    pipeline = FunctionalPipeline(
        model(), mesh=make_mesh(num_stages), num_microbatches=3, remat=remat
    )
    params, batch = pipeline.to_pipeline(toy_params(NUM_LAYERS)), toy_batch(7)
    (loss, _), grads = quick_jit(pipeline.value_and_grad)(params, batch)
    (plain_loss, _), plain_grads = quick_jit(pipeline.plain_value_and_grad)(params, batch)
    assert_close(grads, plain_grads, FLOAT64)
    assert_close(loss, plain_loss, FLOAT64)
    value, _ = quick_jit(pipeline.evaluate)(params, batch)
    assert_close(value, plain_loss, FLOAT64)


def test_batches_of_any_structure(float64):
    """A batch need not be a dict, and may hold None."""

    def embed(outer, batch, keys):
        (tokens, _), _ = batch
        return outer["table"][tokens]

    def head(outer, x, batch, keys):
        return x

    def loss(outputs, batch):
        (_, targets), nothing = batch
        assert nothing is None
        return jnp.sum((outputs - targets[..., None].astype(outputs.dtype)) ** 2, axis=(1, 2))

    def block(params, x, batch, keys):
        return x + jnp.tanh(x @ params["up"]) @ params["down"] * params["scale"]

    parts = LayeredModel(num_layers=NUM_LAYERS, embed=embed, block=block, head=head, loss=loss)
    pipeline = FunctionalPipeline(parts, mesh=make_mesh(2, 2), num_microbatches=2)
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS))
    toy = toy_batch(6)
    batch = ((toy["tokens"], toy["targets"]), None)
    _, grads = quick_jit(pipeline.value_and_grad)(params, batch)
    _, plain_grads = quick_jit(pipeline.plain_value_and_grad)(params, batch)
    assert isinstance(grads, Params)
    assert_close(grads, plain_grads, FLOAT64)
    outputs = quick_jit(pipeline.forward)(params, batch)
    assert outputs.shape == (6, LENGTH, WIDTH)
