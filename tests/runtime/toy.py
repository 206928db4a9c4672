"""A model small enough to compile often, with everything in it that can go wrong in a pipeline.

Two matmuls and a scale per layer, a head that is the embedding's table again, an outer parameter
that nothing reads, integers that travel from stage to stage beside the activations, tokens that are
masked out, a metric, and dropout in all three parts when there are keys.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime import LayeredModel, Params
from jaxpipe.runtime.model import PyTree

VOCABULARY, WIDTH, LENGTH = 7, 4, 3


def drop(x: jax.Array, keys: jax.Array | None, rate: float) -> jax.Array:
    """Dropout with one key per example."""
    if keys is None:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
    return jnp.where(kept, x, jnp.zeros_like(x))


def embed(outer: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
    return {"h": drop(outer["table"][batch["tokens"]], keys, 0.2), "tokens": batch["tokens"]}


def block(params: PyTree, x: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
    hidden = drop(jnp.tanh(x["h"] @ params["up"]), keys, 0.3)
    # Odd tokens take another way: the integers matter, so they must arrive unchanged.
    is_odd = (x["tokens"] % 2 == 1)[..., None]
    change = hidden @ params["down"] * params["scale"]
    return {"h": jnp.where(is_odd, x["h"] - change, x["h"] + change), "tokens": x["tokens"]}


def head(outer: PyTree, x: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
    return drop(x["h"] * outer["gain"], keys, 0.1) @ outer["table"].T


def loss(logits: PyTree, batch: PyTree) -> Any:
    scores = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(scores, batch["targets"][..., None], -1)[..., 0]
    guesses = jax.lax.argmax(logits, 2, jnp.int32)
    hits = (guesses == batch["targets"]).astype(logits.dtype)
    return losses, batch["weights"], {"accuracy": hits}


def toy_model(num_layers: int, **parts: Any) -> LayeredModel:
    """The model; some parts may be others than the toy's own."""
    own = LayeredModel(num_layers=num_layers, embed=embed, block=block, head=head, loss=loss)
    return dataclasses.replace(own, **parts)


@functools.cache
def toy_params(num_layers: int, dtype: str = "float64") -> Params:
    """Random parameters in layer order."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape) * 0.5, dtype)

    blocks = {
        "up": normal(num_layers, WIDTH, 2 * WIDTH),
        "down": normal(num_layers, 2 * WIDTH, WIDTH),
        "scale": normal(num_layers),
    }
    outer = {"table": normal(VOCABULARY, WIDTH), "gain": normal(WIDTH), "unused": normal(2)}
    return Params(blocks, outer)


@functools.cache
def toy_batch(num_examples: int, dtype: str = "float64", seed: int = 1) -> dict[str, jax.Array]:
    """Tokens `[num_examples, length]`, of which about half count."""
    random = np.random.default_rng(seed)
    shape = (num_examples, LENGTH)
    weights = random.integers(0, 2, shape)
    weights[0, 0] = 1
    return {
        "tokens": jnp.asarray(random.integers(0, VOCABULARY, shape), "int32"),
        "targets": jnp.asarray(random.integers(0, VOCABULARY, shape), "int32"),
        "weights": jnp.asarray(weights, dtype),
    }
