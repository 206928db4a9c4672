"""A small network for images, as Flax users write it: convolutions, pooling, and skips."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxpipe import Sequential
from jaxpipe.nn import in_namespace, pop, stash


def halve(x: jax.Array) -> jax.Array:
    """Every other pixel's neighbourhood, averaged."""
    return nnx.avg_pool(x, (2, 2), (2, 2))


def double(x: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)


def beside(x: jax.Array, skip: jax.Array) -> jax.Array:
    return jnp.concatenate([x, skip], -1)


def small_unet(dtype: Any = "float64") -> Sequential:
    """Two levels; per pixel one of three classes."""
    rngs = nnx.Rngs(0)

    def conv(inputs: int, outputs: int, size: int = 3) -> nnx.Conv:
        return nnx.Conv(inputs, outputs, (size, size), rngs=rngs, param_dtype=dtype, dtype=dtype)

    down = in_namespace("inner", [conv(4, 6), jax.nn.relu, stash("skip"), halve])
    up = in_namespace("inner", [double, pop("skip", beside), conv(14, 4), jnp.tanh])
    return Sequential(
        [
            conv(1, 4),
            jnp.tanh,
            stash("skip"),
            halve,
            *down,
            conv(6, 8),
            jnp.tanh,
            *up,
            double,
            pop("skip", beside),
            conv(8, 3, 1),
        ]
    )


def images(num_examples: int, dtype: str = "float64") -> dict[str, jax.Array]:
    random = np.random.default_rng(1)
    return {
        "inputs": jnp.asarray(random.normal(size=(num_examples, 8, 8, 1)), dtype),
        "labels": jnp.asarray(random.integers(0, 3, (num_examples, 8, 8)), "int32"),
    }


def pixel_loss(logits: jax.Array, *, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]
