"""The scan executor: one compiled loop that runs whatever a table says.

Every device runs this loop over the rows of its table (`jaxpipe.lower.table`). Within a tick stand
the phases (`jaxpipe.runtime.phases`), each 0 or 1 times, and between them the messages:

      gradients of the last tick leave ........................
              |                                               :
      F, 0 or 1 times                                  beside F
              |                                               :
      gradients arrive in their slots <........................
              |
      activations leave .......................................
              |                                               :
      R, BW or B, W, each 0 or 1 times             beside these
              |                                               :
      activations arrive in their slots <......................

So in a tick with a forward and a backward both messages travel while the device computes. In a
program with `hop_ticks=1` the messages of a tick travel during the next one, the activations beside
F and the gradients beside the other phases, and all are there at its end: so they are hidden if a
tick holds one action alone, and every result is used one tick later.

The loop never copies a buffer. Each conditional is a loop of 0 or 1 trips that updates its state in
place (`jaxpipe.runtime.conditional`), and a stage's layers are a loop over its slots.

Weights are local to their device and gradients are summed locally; what crosses the mesh axis
`data` crosses it once, after the loop.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxpipe.lower.pools import Pool
from jaxpipe.lower.table import BackwardPass, Column, TableSizes
from jaxpipe.lower.wires import Wire, wires_of
from jaxpipe.runtime import buffers
from jaxpipe.runtime.conditional import when
from jaxpipe.runtime.loop_state import LoopState, initial_state, state_shapes
from jaxpipe.runtime.loss import LossMeans
from jaxpipe.runtime.microbatch import cut
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.ordering import after
from jaxpipe.runtime.phases import Phases
from jaxpipe.runtime.programs import trace_programs
from jaxpipe.runtime.randomness import example_keys
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.runtime.stage_copies import sum_copies, with_copies


def value_and_grad(
    spec: PipelineSpec, sizes: TableSizes, *, poison: bool = False
) -> Callable[[jax.Array, Params, PyTree, jax.Array | None], tuple[LossMeans, Params]]:
    """The step `(table, params, batch, key) -> (loss, gradients)`, ready for `jax.jit`.

    The table is int32 `[num_ticks, num_devices, columns]`; parameters and gradients are in
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
    stored = Params(jax.tree.map(lambda leaf: leaf[0], params.blocks), params.outer)
    local = spec.cast(stored)
    micro = cut(batch, spec.num_microbatches, spec.shard())
    keys = None if key is None else example_keys(key, micro.examples)
    programs = trace_programs(spec, local, (micro.batch, keys), micro.valid)
    placement = spec.layout.placement
    local = Params(with_copies(local.blocks, placement), local.outer)
    loop = _Loop(spec, sizes, Phases(spec, sizes, programs, local, micro, keys))
    zeros = buffers.hidden_zeros(table[0, 0, Column.FORWARD])
    shapes = state_shapes(spec, sizes, programs, stored)
    state = initial_state(shapes, zeros, poison=poison)
    state, _ = jax.lax.scan(lambda state, row: (loop.tick(state, row), None), state, table[:, 0])

    # One reduction per step: over replicas, and where a value has one owner, over stages.
    sums = jax.tree.map(
        lambda leaf: leaf.reshape(spec.num_microbatches, spec.num_slices).sum(1), state.sums
    )
    means = jax.lax.psum(sums, spec.manual_axes).means()
    blocks = sum_copies(state.block_gradients, placement)
    blocks = _spread(spec, blocks, programs.reached, stored.blocks)
    if spec.has_data:
        blocks = jax.lax.psum(blocks, "data")
    outer = jax.lax.psum(state.outer_gradients, spec.manual_axes)
    outer = jax.tree.unflatten(jax.tree.structure(stored.outer), outer)
    grads = jax.tree.map(
        lambda total, leaf: (total / means.weight.astype(total.dtype)).astype(leaf.dtype),
        Params(blocks, outer),
        stored,
    )
    return means, Params(jax.tree.map(lambda leaf: leaf[None], grads.blocks), grads.outer)


def _spread(
    spec: PipelineSpec, sums: list[jax.Array], reached: tuple[bool, ...], blocks: PyTree
) -> PyTree:
    """The sums of trained chunks as a tree of all block parameters, with zeros for the others."""
    found = iter(sums)

    def leaf(like: jax.Array, is_reached: bool) -> jax.Array:
        if not is_reached:
            return jnp.zeros_like(like)
        total = next(found)
        if len(total) == len(like):
            return total
        trained = jnp.array(spec.trained_chunks[: len(total)], jnp.int32)
        return jnp.zeros_like(like, total.dtype).at[trained].set(total)

    leaves, structure = jax.tree.flatten(blocks)
    return structure.unflatten([leaf(*each) for each in zip(leaves, reached, strict=True)])


Arrivals = list[tuple[int, PyTree]]
"""What came over some wires, each with the wire's column in the table."""


class _Loop:
    """The ticks of one device."""

    def __init__(self, spec: PipelineSpec, sizes: TableSizes, phases: Phases) -> None:
        self.sizes = sizes
        self.phases = phases
        numbered = enumerate(wires_of(spec.layout.placement))
        wires = [(len(Column) + number, wire) for number, wire in numbered]
        self.activation_wires = [each for each in wires if each[1].pool is Pool.ACTIVATION]
        self.gradient_wires = [each for each in wires if each[1].pool is Pool.GRADIENT]

    def tick(self, state: LoopState, row: jax.Array) -> LoopState:
        """One tick: the phases, where the table says so, and the messages beside them."""
        sizes, phases = self.sizes, self.phases
        made, gradients, activations = state, Arrivals(), Arrivals()
        if sizes.hop_ticks:
            activations = _send(made.send_activation, self.activation_wires)
        else:
            gradients = _send(made.send_gradient, self.gradient_wires)
        state = when(row[Column.FORWARD] != 0, lambda tie, s: phases.forward(s, tie(row)), state)
        if sizes.hop_ticks:
            message = after(made.send_gradient, *_values(activations), state.send_activation)
            gradients = _send(message, self.gradient_wires)
        else:
            state = _receive_gradients(state, gradients, row)
            activations = _send(
                after(state.send_activation, *_values(gradients)), self.activation_wires
            )
        if sizes.recomputes:
            again = row[Column.RECOMPUTE]
            state = when(again, lambda tie, s: phases.recompute(s, tie(row)), state)
        if any(isinstance(variant, BackwardPass) for variant in sizes.variants):
            back = row[Column.BACKWARD] != 0
            state = when(back, lambda tie, s: phases.backward(s, tie(row)), state)
        if sizes.is_split:
            weight = row[Column.WEIGHT]
            state = when(weight, lambda tie, s: phases.weight(s, tie(row)), state)
        if sizes.hop_ticks:
            state = _receive_gradients(state, gradients, row)
        return _receive_activations(state, activations, row)


def _send(message: PyTree, wires: list[tuple[int, Wire]]) -> Arrivals:
    """Every device sends over every wire, and gets what its neighbours sent."""
    return [(column, jax.lax.ppermute(message, "pipe", wire.pairs)) for column, wire in wires]


def _values(arrivals: Arrivals) -> list[PyTree]:
    return [message for _, message in arrivals]


def _receive_gradients(state: LoopState, arrivals: Arrivals, row: jax.Array) -> LoopState:
    gradients = state.gradients
    for column, message in arrivals:
        gradients = buffers.write(gradients, message, row[column])
    return dataclasses.replace(state, gradients=gradients)


def _receive_activations(state: LoopState, arrivals: Arrivals, row: jax.Array) -> LoopState:
    activations = state.activations
    for column, message in arrivals:
        activations = buffers.write(activations, message, row[column])
    return dataclasses.replace(state, activations=activations)
