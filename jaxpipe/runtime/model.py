"""What the runtime knows of a model: pure functions and trees of parameters.

A `LayeredModel` has blocks that are one function with different parameters, and `x` keeps its
structure, shapes and dtypes from the embedding to the head:

    batch --embed--> x --block 0--> x --block 1--> ... --block L-1--> x --head--> outputs --loss-->

In a `SequentialModel` no layer need be like another, and skips go past some of them:

    batch --inputs--> x --layer 0--> x --layer 1--> ... --layer L-1--> outputs --loss-->
                           `------------- skip -----------^

`jaxpipe.nn` derives these functions from Flax modules.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax

from jaxpipe.runtime.randomness import EMBED, part_keys

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
            `[num_devices, num_chunks, max_layers, ...]`, in layer order `[num_layers, ...]`. Of a
            `SequentialModel`, in layer order: a tree for each layer, by its name; in pipeline
            layout: see `jaxpipe.runtime.packing`.
        outer: All other parameters: those of embedding and head.
    """

    blocks: PyTree
    outer: PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatefulBlock:
    """A block that goes on from the state that earlier tokens have left.

    See `jaxpipe.runtime.sequence_state` for what states there are.

    Attributes:
        initial_state: `(block_params, x, batch) -> state`, the state before the first token.
        block: `(block_params, x, state, batch, keys) -> (x, state)`.
    """

    initial_state: Callable[[PyTree, PyTree, PyTree], PyTree]
    block: Callable[[PyTree, PyTree, PyTree, PyTree, jax.Array | None], tuple[PyTree, PyTree]]


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
        stateful: The block on the tokens that follow others; only needed if microbatches come in
            slices.
    """

    num_layers: int
    embed: Callable[[PyTree, PyTree, jax.Array | None], PyTree]
    block: Callable[[PyTree, PyTree, PyTree, jax.Array | None], PyTree]
    head: Callable[[PyTree, PyTree, PyTree, jax.Array | None], PyTree]
    loss: Callable[[PyTree, PyTree], Any]
    stateful: StatefulBlock | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a `SequentialModel`.

    Attributes:
        name: What it is called, unique in its model.
        params: Shapes of its parameters, all of floating-point dtypes.
        block: `(params, (x, popped), batch, keys) -> (x, stashed)`, where the input and the output
            may be any pytrees, and `popped` and `stashed` are dicts of skips.
        pops: The skips that it takes.
        stashes: The skips that it leaves for later layers.
    """

    name: str
    params: PyTree
    block: Callable[[PyTree, PyTree, PyTree, jax.Array | None], tuple[PyTree, dict[str, PyTree]]]
    pops: tuple[str, ...] = ()
    stashes: tuple[str, ...] = ()

    @property
    def stateful(self) -> None:
        """These layers have no state that would let them run slice by slice."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequentialModel:
    """A model as a sequence of layers, as pure functions of one microbatch, or of any batch.

    Attributes:
        layers: The layers, at least one.
        inputs: `(batch) -> x`, what the first layer gets.
        loss: As that of a `LayeredModel`; the outputs are those of the last layer.
    """

    layers: tuple[Layer, ...]
    inputs: Callable[[PyTree], PyTree]
    loss: Callable[[PyTree, PyTree], Any]

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def stateful(self) -> None:
        """Microbatches come whole."""
        return None

    def run(
        self,
        numbers: range,
        params: Iterable[PyTree],
        border: tuple[PyTree, dict[str, PyTree]],
        batch: PyTree,
        keys: jax.Array | None,
    ) -> tuple[PyTree, dict[str, PyTree]]:
        """Some layers in a row.

        Args:
            numbers: Which.
            params: The parameters of each of them.
            border: What reaches the first of them, and the skips under way.
            batch: The batch.
            keys: A key for each example, or None.

        Returns:
            What the last of them makes, and the skips under way behind it.
        """
        x, skips = border
        skips = dict(skips)
        for number, of_layer in zip(numbers, params, strict=True):
            layer = self.layers[number]
            block = self.with_inputs(layer).block if number == 0 else layer.block
            popped = {name: skips.pop(name) for name in layer.pops}
            layer_keys = part_keys(keys, EMBED + 1 + number)
            x, stashed = block(of_layer, (x, popped), batch, layer_keys)
            skips.update(stashed)
        return x, skips

    def with_inputs(self, layer: Layer) -> Layer:
        """The first layer as one that takes its input from the batch, whatever it is given."""

        def block(
            params: PyTree, nothing: PyTree, batch: PyTree, keys: jax.Array | None
        ) -> tuple[PyTree, dict[str, PyTree]]:
            return layer.block(params, (self.inputs(batch), {}), batch, keys)

        return dataclasses.replace(layer, block=block)

    def head(self, outer: PyTree, x: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
        """The outputs: what the last layer has made."""
        return x
