"""The toy with tokens that see earlier ones, by all kinds of state.

Keys and values grow, a running sum is replaced, and so is an integer, which has no gradient. The
initial state depends on parameters, as a learned one does.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime import LayeredModel, Params, StatefulBlock, plain
from jaxpipe.runtime.loss import LossMeans
from jaxpipe.runtime.model import PyTree
from tests.runtime import toy
from tests.runtime.quick import quick_jit

LENGTH = 7


def initial_state(params: PyTree, x: PyTree, batch: PyTree) -> PyTree:
    batch_size, _, width = x["h"].shape
    return {
        "keys": jnp.zeros((batch_size, 0, width), x["h"].dtype),
        "odd": jnp.zeros((batch_size, 0), bool),
        "sum": jnp.broadcast_to(params["start"], (batch_size, width)),
        "count": jnp.zeros((batch_size,), "int32"),
    }


def stateful_block(
    params: PyTree, x: PyTree, state: PyTree, batch: PyTree, keys: jax.Array | None
) -> tuple[PyTree, PyTree]:
    h = x["h"]
    new_keys = jnp.tanh(h @ params["key"])
    is_odd = x["tokens"] % 2 == 1
    seen = jnp.concatenate([state["keys"], new_keys], axis=1)
    odd = jnp.concatenate([state["odd"], is_odd], axis=1)
    num_queries, num_keys = h.shape[1], seen.shape[1]
    place = jnp.arange(num_keys, dtype="int32")
    visible = (place[num_keys - num_queries :, None] >= place[None]) & ~odd[:, None, :]
    scores = jnp.einsum("bqw,bkw->bqk", h, seen)
    mixed = jnp.einsum(
        "bqk,bkw->bqw", jnp.where(visible, jax.nn.sigmoid(scores), jnp.zeros_like(scores)), seen
    )
    sums = state["sum"][:, None] + jnp.cumsum(new_keys, axis=1)
    counts = state["count"][:, None] + jnp.cumsum(is_odd.astype("int32"), axis=1)
    change = (
        (mixed + sums * jnp.cos(counts.astype(h.dtype))[..., None])
        @ params["down"]
        * params["scale"]
    )
    after = {"keys": seen, "odd": odd, "sum": sums[:, -1], "count": counts[:, -1]}
    return {"h": jnp.sin(h + change), "tokens": x["tokens"]}, after


def block(params: PyTree, x: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
    return stateful_block(params, x, initial_state(params, x, batch), batch, keys)[0]


def embed(outer: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
    tokens = batch["tokens"]
    length = tokens.shape[1]
    positions = batch.get("positions", jnp.arange(length, dtype="int32")[None])
    h = outer["table"][tokens] + outer["positions"][positions]
    return {"h": h, "tokens": tokens}


def sliced_model(num_layers: int, **parts: Any) -> LayeredModel:
    """The model; some parts may be others than its own."""
    own = {
        "block": block,
        "embed": embed,
        "stateful": StatefulBlock(initial_state=initial_state, block=stateful_block),
    }
    return toy.toy_model(num_layers, **(own | parts))


@functools.cache
def sliced_params(num_layers: int) -> Params:
    """Random parameters in layer order."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape) * 0.5, "float64")

    width = toy.WIDTH
    blocks = {
        "key": normal(num_layers, width, width),
        "down": normal(num_layers, width, width),
        "scale": normal(num_layers),
        "start": normal(num_layers, width),
    }
    outer = {
        "table": normal(toy.VOCABULARY, width),
        "positions": normal(LENGTH, width),
        "gain": normal(width),
    }
    return Params(blocks, outer)


@functools.cache
def sliced_batch(num_examples: int, length: int = LENGTH) -> dict[str, jax.Array]:
    """Tokens `[num_examples, length]`, of which about half count."""
    random = np.random.default_rng(1)
    shape = (num_examples, length)
    return {
        "tokens": jnp.asarray(random.integers(0, toy.VOCABULARY, shape), "int32"),
        "targets": jnp.asarray(random.integers(0, toy.VOCABULARY, shape), "int32"),
        "weights": jnp.asarray(random.integers(0, 2, shape), "float64"),
    }


@functools.cache
def sliced_reference(num_layers: int, num_examples: int) -> tuple[LossMeans, Params]:
    """Loss and gradients on whole sequences, in layer order."""
    step = quick_jit(functools.partial(plain.value_and_grad, sliced_model(num_layers)))
    return step(sliced_params(num_layers), sliced_batch(num_examples), None)
