"""The scan executor: one compiled loop that runs whatever a table says.

Every device runs this loop over the rows of its table (`jaxpipe.lower.table`):

      send_right, send_left of the last tick                        (1) two `ppermute`s
              |
              v
      +---------------+    +-------------------------------+    +----------------------------+
      | into the slots| -> | F, 0 or 1 times:              | -> | BW, 0 or 1 times:          | ->
      | of the table  |    |   first stage: embed          |    |   layers L-1..0: read stash|
      +---------------+    |   layers 0..L-1: write stash  |    |     add weight gradients   |
             (2)           |   last stage: head, loss and  |    |   first stage: backward of |
                           |     the gradient they start   |    |     the embedding          |
                           |   -> send_right      (3)      |    |   -> send_left      (4)    |
                           +-------------------------------+    +----------------------------+

The loop never copies a buffer. Each conditional is a loop of 0 or 1 trips that updates its state in
place (`jaxpipe.runtime.conditional`), and the layers of a stage are a loop of the engine's own
rather than a `lax.scan` inside the stage: so a layer's stash goes straight into its slot, its
weight gradient is added straight to its accumulator, no gradient of a whole stage is ever held, and
stages of different length differ in a trip count alone.

In a program that splits backwards, (4) is B: it leaves what W needs in a slot and adds nothing. A
third conditional behind it is W (5), which adds the weight gradients.

Weights are local to their device and gradients are summed locally; what crosses the mesh axis
`data` crosses it once, after the loop.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpipe.lower.table import Column, TableSizes
from jaxpipe.runtime import buffers
from jaxpipe.runtime.conditional import Tie, when
from jaxpipe.runtime.differentiable import split
from jaxpipe.runtime.loss import LossMeans, LossSums
from jaxpipe.runtime.microbatch import Microbatches, cut
from jaxpipe.runtime.model import Leaf, Params, PyTree
from jaxpipe.runtime.programs import StagePrograms, trace_programs
from jaxpipe.runtime.randomness import EMBED, example_keys, part_keys
from jaxpipe.runtime.spec import PipelineSpec


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopState:
    """What one device carries from tick to tick.

    Attributes:
        activations: Received activations, `[slots, ...]`.
        gradients: Received gradients, and those of the loss, `[slots, ...]`.
        inputs: Inputs of the stage kept for its second forward, `[slots, ...]`; without
            recomputation of whole stages, no slots.
        stashes: What the layers keep, `[slots, max_layers, ...]`: first what waits for BW, or for
            B; then, where backwards are split, what waits for W.
        kept: Where backwards are split, what B leaves for W, `[slots, max_layers, ...]`.
        send_right: The message for the next stage.
        send_left: The message for the stage before.
        block_gradients: Sums for the block parameters that a gradient reaches,
            `[num_chunks, max_layers, ...]`.
        outer_gradients: Sums for all outer parameters.
        sums: Loss sums `[num_microbatches]`.
    """

    activations: PyTree
    gradients: list[Leaf]
    inputs: PyTree
    stashes: tuple[list[Leaf], list[Leaf]]
    kept: list[Leaf]
    send_right: PyTree
    send_left: list[Leaf]
    block_gradients: list[Leaf]
    outer_gradients: list[Leaf]
    sums: LossSums


def value_and_grad(
    spec: PipelineSpec, sizes: TableSizes, *, poison: bool = False
) -> Callable[[jax.Array, Params, PyTree, jax.Array | None], tuple[LossMeans, Params]]:
    """The step `(table, params, batch, key) -> (loss, gradients)`, ready for `jax.jit`.

    The table is int32 `[num_ticks, num_devices, len(Column)]`; parameters and gradients are in
    pipeline layout; batch leaves are `[batch_size, ...]` over all replicas.

    Args:
        spec: The pipeline.
        sizes: Sizes of the tables that the step is to run.
        poison: Fill empty buffers with NaN, to show that idle ticks change nothing.
    """
    return jax.shard_map(
        lambda *operands: _device_step(spec, sizes, poison, *operands),
        mesh=spec.mesh,
        in_specs=(
            PartitionSpec(None, "pipe"),
            spec.params_spec,
            spec.batch_spec,
            PartitionSpec(),
        ),
        out_specs=(PartitionSpec(), spec.params_spec),
        axis_names=set(spec.manual_axes),
        check_vma=False,
    )


def _device_step(
    spec: PipelineSpec,
    sizes: TableSizes,
    poison: bool,
    table: jax.Array,
    params: Params,
    batch: PyTree,
    key: jax.Array | None,
) -> tuple[LossMeans, Params]:
    """The whole step on one device: loop, then the sums over devices."""
    local = Params(jax.tree.map(lambda leaf: leaf[0], params.blocks), params.outer)
    micro = cut(batch, spec.num_microbatches, spec.shard())
    device = _Device(spec, sizes, spec.cast(local), micro, key)
    zeros = buffers.hidden_zeros(table[0, 0, Column.FORWARD])
    state = device.initial_state(local, zeros, poison)
    state, _ = jax.lax.scan(lambda state, row: (device.tick(state, row), None), state, table[:, 0])

    # One reduction per step: over replicas, and where a value has one owner, over stages.
    means = jax.lax.psum(state.sums, spec.manual_axes).means()
    blocks = device.spread_block_gradients(state.block_gradients, local.blocks)
    if spec.has_data:
        blocks = jax.lax.psum(blocks, "data")
    outer = jax.lax.psum(state.outer_gradients, spec.manual_axes)
    outer = jax.tree.unflatten(jax.tree.structure(local.outer), outer)
    grads = jax.tree.map(
        lambda total, leaf: (total / means.weight.astype(total.dtype)).astype(leaf.dtype),
        Params(blocks, outer),
        local,
    )
    return means, Params(jax.tree.map(lambda leaf: leaf[None], grads.blocks), grads.outer)


class _Device:
    """What one device does in a tick, given the operands that do not change between ticks."""

    def __init__(
        self,
        spec: PipelineSpec,
        sizes: TableSizes,
        params: Params,
        micro: Microbatches,
        key: jax.Array | None,
    ) -> None:
        self.spec = spec
        self.sizes = sizes
        self.params = params  # blocks [num_chunks, max_layers, ...]
        self.micro = micro
        self.keys = None if key is None else example_keys(key, micro.examples)
        self.programs: StagePrograms = trace_programs(
            spec.model, params, (micro.batch, self.keys), micro.valid, spec.remat.policy
        )

    def initial_state(self, stored: Params, zeros: Iterator[jax.Array], poison: bool) -> LoopState:
        """Empty buffers, and sums of zero in the dtypes of the stored parameters."""
        spec, sizes, programs = self.spec, self.sizes, self.programs
        make = functools.partial(buffers.make_ring, zeros=zeros, poison=poison)
        gradient, _ = split(programs.x)
        whole_stage, layers = spec.remat.whole_stage, spec.layout.max_layers
        for_backward, for_weights = self._part_stash(list(programs.layer.stash))
        kept = list(programs.layer.backward_split.kept) if sizes.is_split else []
        blocks = jax.tree.leaves(stored.blocks)
        reached = [leaf for leaf, ok in zip(blocks, programs.layer.reached, strict=True) if ok]
        return LoopState(
            activations=make((sizes.num_activations,), programs.x),
            gradients=make((sizes.num_gradients,), gradient),
            inputs=make((sizes.num_stashes if whole_stage else 0,), programs.x),
            stashes=(
                make((1 if whole_stage else sizes.num_stashes, layers), for_backward),
                make((sizes.num_weight_stashes, layers), for_weights),
            ),
            kept=make((sizes.num_weight_gradients, layers), kept),
            send_right=make((), programs.x),
            send_left=make((), gradient),
            block_gradients=buffers.make_ring((), reached, zeros),
            outer_gradients=buffers.make_ring((), jax.tree.leaves(stored.outer), zeros),
            sums=buffers.make_ring((spec.num_microbatches,), programs.head.sums, zeros),
        )

    def spread_block_gradients(self, sums: list[jax.Array], blocks: PyTree) -> PyTree:
        """The sums as a tree of all block parameters, with zeros for those never reached."""
        found = iter(sums)
        leaves = [
            next(found) if reached else jnp.zeros_like(leaf)
            for leaf, reached in zip(
                jax.tree.leaves(blocks), self.programs.layer.reached, strict=True
            )
        ]
        return jax.tree.unflatten(jax.tree.structure(blocks), leaves)

    def tick(self, state: LoopState, row: jax.Array) -> LoopState:
        """One tick: messages arrive, then F, then BW or B, then W, where the table says so."""
        state = self._arrive(state, row)
        state = when(row[Column.FORWARD], lambda tie, s: self._forward(s, tie(row)), state)
        state = when(row[Column.BACKWARD], lambda tie, s: self._backward(s, tie(row)), state)
        if not self.sizes.is_split:
            return state
        return when(row[Column.WEIGHT], lambda tie, s: self._weight(s, tie(row)), state)

    def _arrive(self, state: LoopState, row: jax.Array) -> LoopState:
        """(1) and (2): neighbours exchange their messages."""
        num_devices = self.spec.mesh.shape["pipe"]
        # Without chunks nothing goes from the last device to the first.
        wraps = len(self.spec.layout.layers_per_stage) > num_devices
        right = [
            (d, (d + 1) % num_devices) for d in range(num_devices if wraps else num_devices - 1)
        ]
        left = [(target, source) for source, target in right]
        from_left = jax.lax.ppermute(state.send_right, "pipe", right)
        from_right = jax.lax.ppermute(state.send_left, "pipe", left)
        return dataclasses.replace(
            state,
            activations=buffers.write(
                state.activations, from_left, row[Column.ARRIVING_ACTIVATION]
            ),
            gradients=buffers.write(state.gradients, from_right, row[Column.ARRIVING_GRADIENT]),
        )

    def _forward(self, state: LoopState, row: jax.Array) -> LoopState:
        """(3): the forward of one microbatch through one stage."""
        stage, microbatch = row[Column.FORWARD_STAGE], row[Column.FORWARD_MICROBATCH]
        slots = row[Column.FORWARD_STASH], row[Column.FORWARD_WEIGHT_STASH]
        side = self._side(microbatch)

        def embed(tie: Tie, _: PyTree) -> PyTree:
            batch, keys = tie(side)
            return self.programs.embed.forward(self.params.outer, (batch, part_keys(keys, EMBED)))

        x = buffers.read(state.activations, row[Column.FORWARD_ACTIVATION])
        x = when(stage == 0, embed, x)
        if self.spec.remat.whole_stage:
            state = dataclasses.replace(state, inputs=buffers.write(state.inputs, x, slots[0]))
            x = self._layers(stage, side, x)
        else:
            x, stashes = self._layers_with_stash(stage, side, x, state.stashes, slots)
            state = dataclasses.replace(state, stashes=stashes)

        def head(tie: Tie, state: LoopState) -> LoopState:
            x_tied, batch, keys, valid = tie((x, *side, self.micro.valid[microbatch]))
            keys = part_keys(keys, EMBED + 1 + self.spec.model.num_layers)
            sums, outer, gradient = self.programs.head.run(
                self.params.outer, x_tied, (batch, keys), valid
            )
            return dataclasses.replace(
                state,
                gradients=buffers.write(state.gradients, gradient, row[Column.FORWARD_GRADIENT]),
                outer_gradients=_add_where(
                    self.programs.head.reached, state.outer_gradients, outer
                ),
                sums=buffers.write(state.sums, sums, microbatch),
            )

        state = when(stage == len(self.spec.layout.layers_per_stage) - 1, head, state)
        return dataclasses.replace(state, send_right=x)

    def _backward(self, state: LoopState, row: jax.Array) -> LoopState:
        """(4): the backward of one microbatch through one stage, or its part B."""
        stage, microbatch = row[Column.BACKWARD_STAGE], row[Column.BACKWARD_MICROBATCH]
        slots = row[Column.BACKWARD_STASH], row[Column.BACKWARD_WEIGHT_STASH]
        side = self._side(microbatch)
        if self.spec.remat.whole_stage:
            x = buffers.read(state.inputs, slots[0])
            slots = jnp.zeros_like(slots[0]), slots[1]  # the only slot for a second forward
            _, stashes = self._layers_with_stash(stage, side, x, state.stashes, slots)
            state = dataclasses.replace(state, stashes=stashes)
        gradient = buffers.read(state.gradients, row[Column.BACKWARD_GRADIENT])
        count = self._count(stage)

        def layer(step: jax.Array, carry: tuple[list, LoopState]) -> tuple[list, LoopState]:
            gradient, state = carry
            position = count - 1 - step
            params, layer_side, chunk = self._layer_operands(stage, position, side)
            stash = self._read_stash(state.stashes, slots, position)
            if self.sizes.is_split:
                gradient, kept = self.programs.layer.backward_input(
                    params, stash, layer_side, gradient
                )
                kept = buffers.write(state.kept, kept, row[Column.BACKWARD_KEPT], position)
                return gradient, dataclasses.replace(state, kept=kept)
            sums, gradient = self.programs.layer.backward(params, stash, layer_side, gradient)
            total = buffers.add(state.block_gradients, sums, chunk, position)
            return gradient, dataclasses.replace(state, block_gradients=total)

        gradient, state = jax.lax.fori_loop(0, count, layer, (gradient, state))

        def embed(tie: Tie, state: LoopState) -> LoopState:
            gradient_tied, batch, keys = tie((gradient, *side))
            outer = self.programs.embed.backward(
                self.params.outer, (batch, part_keys(keys, EMBED)), gradient_tied
            )
            return dataclasses.replace(
                state,
                outer_gradients=_add_where(
                    self.programs.embed.reached, state.outer_gradients, outer
                ),
            )

        state = when(stage == 0, embed, state)
        return dataclasses.replace(state, send_left=gradient)

    def _weight(self, state: LoopState, row: jax.Array) -> LoopState:
        """(5): the weight gradients of one microbatch in one stage."""
        stage, side = row[Column.WEIGHT_STAGE], self._side(row[Column.WEIGHT_MICROBATCH])
        _, for_weights = state.stashes

        def layer(position: jax.Array, sums: list) -> list:
            params, layer_side, chunk = self._layer_operands(stage, position, side)
            waited = buffers.read(for_weights, row[Column.WEIGHT_STASH], position)
            stash: list = [None] * len(self.programs.layer.stash)
            for place, value in zip(self.programs.layer.weight_stash, waited, strict=True):
                stash[place] = value
            kept = buffers.read(state.kept, row[Column.WEIGHT_KEPT], position)
            new = self.programs.layer.backward_weight(params, stash, layer_side, kept)
            return buffers.add(sums, new, chunk, position)

        sums = jax.lax.fori_loop(0, self._count(stage), layer, state.block_gradients)
        return dataclasses.replace(state, block_gradients=sums)

    def _layers(self, stage: jax.Array, side: PyTree, x: PyTree) -> PyTree:
        """The layers of a stage, keeping nothing."""

        def layer(position: jax.Array, x: PyTree) -> PyTree:
            params, layer_side, _ = self._layer_operands(stage, position, side)
            return self.programs.layer.output(params, x, layer_side)

        return jax.lax.fori_loop(0, self._count(stage), layer, x)

    def _layers_with_stash(
        self,
        stage: jax.Array,
        side: PyTree,
        x: PyTree,
        stashes: tuple[list, list],
        slots: tuple[jax.Array, jax.Array],
    ) -> tuple[PyTree, tuple[list, list]]:
        """The layers of a stage, each leaving its stash in the slots."""

        def layer(position: jax.Array, carry: tuple[PyTree, tuple]) -> tuple[PyTree, tuple]:
            x, stashes = carry
            params, layer_side, _ = self._layer_operands(stage, position, side)
            x, stash = self.programs.layer.forward(params, x, layer_side)
            parts = zip(stashes, self._part_stash(stash), slots, strict=True)
            written = [buffers.write(ring, part, slot, position) for ring, part, slot in parts]
            return x, tuple(written)

        return jax.lax.fori_loop(0, self._count(stage), layer, (x, stashes))

    def _part_stash(self, stash: list) -> tuple[list, list]:
        """A layer's stash in two: what waits for the backward or B, and what waits for W."""
        waits = set(self.programs.layer.weight_stash) if self.sizes.is_split else set()
        return (
            [value for place, value in enumerate(stash) if place not in waits],
            [value for place, value in enumerate(stash) if place in waits],
        )

    def _read_stash(
        self,
        stashes: tuple[list, list],
        slots: tuple[jax.Array, jax.Array],
        position: jax.Array,
    ) -> list:
        """A layer's stash, put together again."""
        places = list(range(len(self.programs.layer.stash)))
        found: dict[int, jax.Array] = {}
        for ring, part, slot in zip(stashes, self._part_stash(places), slots, strict=True):
            found.update(zip(part, buffers.read(ring, slot, position), strict=True))
        return [found[place] for place in places]

    def _count(self, stage: jax.Array) -> jax.Array | int:
        """Layers of a stage: a number where all stages have the same, which compiles better."""
        counts = self.spec.layout.layers_per_stage
        return counts[0] if len(set(counts)) == 1 else jnp.array(counts, jnp.int32)[stage]

    def _layer_operands(
        self, stage: jax.Array, position: jax.Array, side: PyTree
    ) -> tuple[PyTree, PyTree, jax.Array]:
        """Parameters, `(batch, keys)` and chunk of the layer at a position of a stage."""
        layout = self.spec.layout
        chunk = jnp.array(layout.chunk_of_stage, jnp.int32)[stage]
        number = jnp.array(layout.first_layers, jnp.int32)[stage] + position
        batch, keys = side
        params = buffers.read(self.params.blocks, chunk, position)
        return params, (batch, part_keys(keys, EMBED + 1 + number)), chunk

    def _side(self, microbatch: jax.Array) -> PyTree:
        """`(batch, keys)` of a microbatch, where the keys are those of the examples."""
        return buffers.read((self.micro.batch, self.keys), microbatch)


def _add_where(reached: tuple[bool, ...], sums: list, gradients: list) -> list:
    """The sums, with the gradients added to the leaves that are reached."""
    found = iter(gradients)
    return [
        total + next(found).astype(total.dtype) if ok else total
        for total, ok in zip(sums, reached, strict=True)
    ]
