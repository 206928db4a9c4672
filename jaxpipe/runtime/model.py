"""What the runtime knows of a model: four pure functions and two trees of parameters.

    batch --embed--> x --block 0--> x --block 1--> ... --block L-1--> x --head--> outputs --loss-->

All blocks are one function with different parameters; `x` keeps its structure, shapes and dtypes
from the embedding to the head. `jaxpipe.nn` derives these functions from a Flax model.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

PyTree = Any
"""Any pytree of arrays."""

if TYPE_CHECKING:
    Leaf = jax.Array
else:
    # Maps over a tree put shapes, shardings or flags where the arrays were, and JAX calls the
    # constructor with them: no field of a registered dataclass can insist on arrays.
    Leaf = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """The parameters of a pipelined model, or anything of the same shape: gradients, moments.

    Attributes:
        blocks: Parameters of the blocks. In pipeline layout each leaf is
            `[num_devices, num_chunks, max_layers, ...]`, in layer order `[num_layers, ...]`.
        outer: All other parameters: those of embedding and head.
    """

    blocks: PyTree
    outer: PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayeredModel:
    """A model as pure functions of one microbatch, or of any batch.

    Every function takes the batch, and `keys`: a PRNG key for each example of the batch, already
    specific to the step, the example and the part (see `jaxpipe.runtime.randomness`), or None where
    nothing is random.

    Attributes:
        num_layers: Number of blocks, at least 1.
        embed: `(outer, batch, keys) -> x`.
        block: `(block_params, x, batch, keys) -> x`.
        head: `(outer, x, batch, keys) -> outputs`.
        loss: `(outputs, batch) -> losses`, or `(losses, weights)`, or `(losses, weights, metrics)`;
            see `jaxpipe.runtime.loss`.
    """

    num_layers: int
    embed: Callable[[PyTree, PyTree, jax.Array | None], PyTree]
    block: Callable[[PyTree, PyTree, PyTree, jax.Array | None], PyTree]
    head: Callable[[PyTree, PyTree, PyTree, jax.Array | None], PyTree]
    loss: Callable[[PyTree, PyTree], Any]
