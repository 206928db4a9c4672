"""A sequential model with everything that can cross a border between two stages, or go past it.

No two layers have equal parameters or outputs. There are layers without parameters, a named tuple
with None, booleans and integers in it, floats through which no gradient passes, dropout, and skips:
one over a single layer, one over several, one of integers alone.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime import LossMeans, Params, plain
from jaxpipe.runtime.model import Layer, PyTree, SequentialModel
from tests.runtime.quick import quick_jit
from tests.runtime.reference import key_of
from tests.runtime.toy import VOCABULARY, drop, loss, toy_batch

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "table": {"rows": (VOCABULARY, 4)},
    "grow": {"kernel": (4, 6), "bias": (6,)},
    "mask": {},
    "shrink": {"kernel": (6, 4), "gain": ()},
    "count": {},
    "widen": {"kernel": (4, 5), "unused": (3,)},
    "mix": {"kernel": (4, 5)},
    "choose": {"even": (5,), "odd": (5,)},
    "logits": {"kernel": (5, VOCABULARY)},
}
"""The parameters of every layer, in model order."""

NUM_LAYERS = len(SHAPES)


class Travelling(NamedTuple):
    """What goes from layer to layer for a while."""

    h: jax.Array
    nothing: None
    is_odd: jax.Array
    damping: jax.Array


def _table(params: PyTree, x: PyTree, keys: jax.Array | None) -> tuple:
    return {"h": drop(params["rows"][x], keys, 0.2), "tokens": x}, {}


def _grow(params: PyTree, x: PyTree, keys: jax.Array | None) -> tuple:
    h = drop(jnp.tanh(x["h"] @ params["kernel"] + params["bias"]), keys, 0.3)
    return {"h": h, "tokens": x["tokens"]}, {"near": h[..., :4] * 2}


def _mask(params: PyTree, x: PyTree, keys: jax.Array | None) -> tuple:
    damping = jax.lax.stop_gradient(jnp.cos(x["h"]))
    return Travelling(x["h"], None, x["tokens"] % 2 == 1, damping), {"tokens": x["tokens"]}


def _shrink(params: PyTree, x: PyTree, keys: jax.Array | None, near: jax.Array) -> tuple:
    h = (x.h * x.damping) @ params["kernel"] * params["gain"] + near
    return x._replace(h=h, damping=h), {"far": (None, h)}


def _count(params: PyTree, x: PyTree, keys: jax.Array | None) -> tuple:
    return x._replace(h=drop(x.h, keys, 0.1)), {}


def _widen(params: PyTree, x: PyTree, keys: jax.Array | None) -> tuple:
    return jnp.where(x.is_odd[..., None], jnp.sin(x.h), x.damping) @ params["kernel"], {}


def _mix(params: PyTree, x: PyTree, keys: jax.Array | None, far: tuple) -> tuple:
    return {"sum": x + far[1] @ params["kernel"]}, {}


def _choose(params: PyTree, x: PyTree, keys: jax.Array | None, tokens: jax.Array) -> tuple:
    is_odd = (tokens % 2 == 1)[..., None]
    return x["sum"] * jnp.where(is_odd, params["odd"], params["even"]), {}


def _logits(params: PyTree, x: PyTree, keys: jax.Array | None) -> tuple:
    return drop(x, keys, 0.1) @ params["kernel"], {}


FUNCTIONS: dict[str, Any] = {
    "table": _table,
    "grow": _grow,
    "mask": _mask,
    "shrink": _shrink,
    "count": _count,
    "widen": _widen,
    "mix": _mix,
    "choose": _choose,
    "logits": _logits,
}
POPS = {"shrink": ("near",), "mix": ("far",), "choose": ("tokens",)}
STASHES = {"grow": ("near",), "mask": ("tokens",), "shrink": ("far",)}


def sequential_toy(dtype: str = "float64") -> SequentialModel:
    """The model."""

    def layer(name: str) -> Layer:
        def block(params: PyTree, inputs: tuple, batch: PyTree, keys: jax.Array | None) -> tuple:
            x, popped = inputs
            return FUNCTIONS[name](params, x, keys, **popped)

        shapes = {key: jax.ShapeDtypeStruct(shape, dtype) for key, shape in SHAPES[name].items()}
        pops, stashes = POPS.get(name, ()), STASHES.get(name, ())
        return Layer(name=name, params=shapes, block=block, pops=pops, stashes=stashes)

    layers = tuple(layer(name) for name in SHAPES)
    return SequentialModel(layers=layers, inputs=lambda batch: batch["tokens"], loss=loss)


@functools.cache
def sequential_params(dtype: str = "float64") -> Params:
    """Random parameters in layer order."""
    random = np.random.default_rng(0)
    blocks = {
        name: {
            key: jnp.asarray(random.normal(size=shape) * 0.5, dtype)
            for key, shape in shapes.items()
        }
        for name, shapes in SHAPES.items()
        if shapes
    }
    return Params(blocks, ())


@functools.cache
def sequential_reference(
    num_examples: int, seed: int | None, frozen: plain.Frozen | None = None
) -> tuple[LossMeans, Params]:
    """Loss and gradients without a pipeline."""
    step = quick_jit(functools.partial(plain.value_and_grad, sequential_toy(), frozen=frozen))
    return step(sequential_params(), toy_batch(num_examples), key_of(seed))
