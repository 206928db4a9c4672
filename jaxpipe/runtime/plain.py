"""The unpipelined program: what every pipelined step must equal.

The same functions, the same keys and the same weighing of losses, on whole batches and without any
mesh, stage or microbatch. Parameters are in layer order.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxpipe.runtime.loss import LossMeans, LossSums, weighted_sums
from jaxpipe.runtime.model import LayeredModel, Params, PyTree, SequentialModel
from jaxpipe.runtime.randomness import EMBED, example_keys, part_keys


def outputs(
    model: LayeredModel | SequentialModel, params: Params, batch: PyTree, key: jax.Array | None
) -> PyTree:
    """What the head, or the last layer, returns for a batch."""
    num_examples = jax.tree.leaves(batch)[0].shape[0]
    keys = None if key is None else example_keys(key, jnp.arange(num_examples))
    if isinstance(model, SequentialModel):
        of_layers = [params.blocks.get(layer.name, layer.params) for layer in model.layers]
        x, _ = model.run(range(model.num_layers), of_layers, ((), {}), batch, keys)
        return x

    def block(x: PyTree, layer: tuple[PyTree, jax.Array]) -> tuple[PyTree, None]:
        layer_params, number = layer
        return model.block(layer_params, x, batch, part_keys(keys, EMBED + 1 + number)), None

    x = model.embed(params.outer, batch, part_keys(keys, EMBED))
    x, _ = jax.lax.scan(block, x, (params.blocks, jnp.arange(model.num_layers)))
    return model.head(params.outer, x, batch, part_keys(keys, EMBED + 1 + model.num_layers))


def loss(
    model: LayeredModel | SequentialModel, params: Params, batch: PyTree, key: jax.Array | None
) -> tuple[jax.Array, LossMeans]:
    """The loss of a batch, and how it came about."""
    num_examples = jax.tree.leaves(batch)[0].shape[0]
    terms = model.loss(outputs(model, params, batch, key), batch)
    sums = weighted_sums(terms, jnp.ones(num_examples, bool))
    one_microbatch: LossSums = jax.tree.map(lambda value: value[None], sums)
    means = one_microbatch.means()
    return means.loss, means


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frozen:
    """What is not trained.

    Attributes:
        layers: For every layer, whether it is frozen.
        embedding: Whether the embedding is.
        head: Whether the head is, too: then nothing is trained.
    """

    layers: tuple[bool, ...]
    embedding: bool = False
    head: bool = False


def value_and_grad(
    model: LayeredModel | SequentialModel,
    params: Params,
    batch: PyTree,
    key: jax.Array | None,
    frozen: Frozen | None = None,
) -> tuple[LossMeans, Params]:
    """The loss of a batch and its gradient by every parameter; 0 for those that are frozen."""
    frozen = frozen or Frozen(layers=(False,) * model.num_layers)

    def trained_loss(params: Params) -> tuple[jax.Array, LossMeans]:
        outer = jax.lax.stop_gradient(params.outer) if frozen.head else params.outer
        if isinstance(model, SequentialModel):
            return loss(model, Params(_stop_layers(model, params, frozen), outer), batch, key)

        own_embed = model.embed

        def embed(outer: PyTree, *side: PyTree) -> PyTree:
            return own_embed(jax.lax.stop_gradient(outer) if frozen.embedding else outer, *side)

        blocks = jax.tree.map(lambda leaf: _stop_some(leaf, frozen.layers), params.blocks)
        changed = dataclasses.replace(model, embed=embed)
        return loss(changed, Params(blocks, outer), batch, key)

    (_, means), grads = jax.value_and_grad(trained_loss, has_aux=True)(params)
    return means, grads


def _stop_layers(model: SequentialModel, params: Params, frozen: Frozen) -> dict[str, PyTree]:
    """The parameters of all layers by name, through those of frozen ones no gradient passes."""
    stopped = {layer.name for layer, flag in zip(model.layers, frozen.layers, strict=True) if flag}
    return {
        name: jax.lax.stop_gradient(tree) if name in stopped else tree
        for name, tree in params.blocks.items()
    }


def _stop_some(leaf: jax.Array, frozen: tuple[bool, ...]) -> jax.Array:
    """The parameters of all layers, through some of which no gradient passes."""
    if not any(frozen):
        return leaf
    mask = jnp.array(frozen).reshape((-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(mask, jax.lax.stop_gradient(leaf), leaf)
