"""The unpipelined program, slice by slice: does a model give the same on slices as on the whole?

Slicing changes nothing only if the model keeps its side of the bargain: the state holds all that
later tokens need, positions are those of the whole sequence, random masks belong to tokens. None of
this can be read off its shapes, but it can be tried.
"""

import jax
import jax.numpy as jnp

from jaxpipe.runtime import plain
from jaxpipe.runtime.model import LayeredModel, Params, PyTree
from jaxpipe.runtime.randomness import EMBED, example_keys, part_keys
from jaxpipe.runtime.slices import Slice, Slicing


def sliced_outputs(
    model: LayeredModel, params: Params, batch: PyTree, key: jax.Array | None, slicing: Slicing
) -> list[PyTree]:
    """What the head returns for every slice of a batch.

    Args:
        model: A model with a state.
        params: Parameters in layer order.
        batch: Leaves `[batch_size, ...]`.
        key: The key of a step, or None.
        slicing: How sequences are cut.
    """
    stateful = model.stateful
    assert stateful is not None
    num_examples = jax.tree.leaves(batch)[0].shape[0]
    keys = None if key is None else example_keys(key, jnp.arange(num_examples))
    layers = [
        jax.tree.map(lambda leaf, n=n: leaf[n], params.blocks) for n in range(model.num_layers)
    ]
    whole = jax.eval_shape(model.embed, params.outer, batch, part_keys(keys, EMBED))
    num_tokens = slicing.count_tokens(whole)
    states: list[PyTree] = [None] * model.num_layers

    def run(piece: Slice) -> PyTree:
        part = piece.take(batch, num_tokens)
        x = model.embed(params.outer, part, part_keys(keys, EMBED))
        for number, layer in enumerate(layers):
            before = states[number] if piece.number else stateful.initial_state(layer, x, part)
            layer_keys = part_keys(keys, EMBED + 1 + number)
            x, states[number] = stateful.block(layer, x, before, part, layer_keys)
        return model.head(params.outer, x, part, part_keys(keys, EMBED + 1 + model.num_layers))

    return [run(piece) for piece in slicing.cut(num_tokens)]


def largest_difference(
    model: LayeredModel, params: Params, batch: PyTree, key: jax.Array | None, slicing: Slicing
) -> jax.Array:
    """Between the outputs on slices and on the whole, relative to the largest output."""
    whole = jax.tree.leaves(plain.outputs(model, params, batch, key))
    parts = [jax.tree.leaves(each) for each in sliced_outputs(model, params, batch, key, slicing)]
    found = [
        jnp.max(jnp.abs(jnp.concatenate(pieces, axis=1) - leaf)) / jnp.max(jnp.abs(leaf))
        for leaf, *pieces in zip(whole, *parts, strict=True)
    ]
    return jnp.max(jnp.stack(found))
