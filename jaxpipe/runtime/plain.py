"""The unpipelined program: what every pipelined step must equal.

The same functions, the same keys and the same weighing of losses, on whole batches and without any
mesh, stage or microbatch. Parameters are in layer order.
"""

import jax
import jax.numpy as jnp

from jaxpipe.runtime.loss import LossMeans, LossSums, weighted_sums
from jaxpipe.runtime.model import LayeredModel, Params, PyTree
from jaxpipe.runtime.randomness import EMBED, example_keys, part_keys


def outputs(model: LayeredModel, params: Params, batch: PyTree, key: jax.Array | None) -> PyTree:
    """What the head returns for a batch."""
    num_examples = jax.tree.leaves(batch)[0].shape[0]
    keys = None if key is None else example_keys(key, jnp.arange(num_examples))

    def block(x: PyTree, layer: tuple[PyTree, jax.Array]) -> tuple[PyTree, None]:
        layer_params, number = layer
        return model.block(layer_params, x, batch, part_keys(keys, EMBED + 1 + number)), None

    x = model.embed(params.outer, batch, part_keys(keys, EMBED))
    x, _ = jax.lax.scan(block, x, (params.blocks, jnp.arange(model.num_layers)))
    return model.head(params.outer, x, batch, part_keys(keys, EMBED + 1 + model.num_layers))


def loss(
    model: LayeredModel, params: Params, batch: PyTree, key: jax.Array | None
) -> tuple[jax.Array, LossMeans]:
    """The loss of a batch, and how it came about."""
    num_examples = jax.tree.leaves(batch)[0].shape[0]
    terms = model.loss(outputs(model, params, batch, key), batch)
    sums = weighted_sums(terms, jnp.ones(num_examples, bool))
    one_microbatch: LossSums = jax.tree.map(lambda value: value[None], sums)
    means = one_microbatch.means()
    return means.loss, means


def value_and_grad(
    model: LayeredModel, params: Params, batch: PyTree, key: jax.Array | None
) -> tuple[LossMeans, Params]:
    """The loss of a batch and its gradient by every parameter."""
    (_, means), grads = jax.value_and_grad(
        lambda params: loss(model, params, batch, key), has_aux=True
    )(params)
    return means, grads
