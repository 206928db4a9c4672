"""The phases of a tick, each as a function of its own: to learn what one takes before all run.

A phase does not communicate, so it can be compiled for one device by itself, with the very state
and operands that it has in the loop. Its compiled workspace goes into the memory plan, and its
measured time into the costs of actions.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxpipe.lower.table import BackwardPass, TableSizes, num_columns
from jaxpipe.lower.ticks import Phase
from jaxpipe.runtime.loop_state import LoopState, state_shapes
from jaxpipe.runtime.microbatch import Microbatches, cut
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.phases import Phases
from jaxpipe.runtime.programs import Programs, trace_programs
from jaxpipe.runtime.randomness import example_keys
from jaxpipe.runtime.spec import PipelineSpec

PhaseAlone = Callable[[LoopState, jax.Array, "Operands"], LoopState]
"""A phase as `(state, row, operands) -> state`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
    """What the phases of one device read and never change.

    Attributes:
        params: Parameters to compute with: blocks `[chunks of all paths, max_layers, ...]`.
        micro: The microbatches of one replica.
        keys: A key for each example, or None.
    """

    params: Params
    micro: Microbatches
    keys: PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceShapes:
    """The shapes of all that one device has during a step.

    Attributes:
        stored: Parameters at rest: blocks `[chunks, max_layers, ...]`.
        computed: The same in the dtype to compute in.
        operands: What the phases read.
        programs: The programs of the model.
        state: What the loop carries.
    """

    stored: Params
    computed: Params
    operands: Operands
    programs: Programs
    state: LoopState


def device_shapes(
    spec: PipelineSpec, sizes: TableSizes, params: Params, batch: PyTree, key: PyTree = None
) -> DeviceShapes:
    """The shapes on one device.

    Args:
        spec: The pipeline.
        sizes: Sizes of the table.
        params: Parameters in pipeline layout, or their shapes.
        batch: The batch over all replicas, or its shapes.
        key: The step's key or its shape, or None.
    """
    stored = jax.tree.map(_shape, Params(_without_first_dim(params.blocks), params.outer))
    computed = jax.eval_shape(spec.cast, stored)
    micro, keys = _microbatches(spec, batch, key)
    programs = trace_programs(spec, computed, (micro.batch, keys), micro.valid)
    paths = len(spec.layout.placement.paths)
    blocks = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((paths * leaf.shape[0], *leaf.shape[1:]), leaf.dtype),
        computed.blocks,
    )
    return DeviceShapes(
        stored=stored,
        computed=computed,
        operands=Operands(params=Params(blocks, computed.outer), micro=micro, keys=keys),
        programs=programs,
        state=state_shapes(spec, sizes, programs, stored),
    )


def phases_alone(
    spec: PipelineSpec, sizes: TableSizes, programs: Programs
) -> dict[Phase, PhaseAlone]:
    """The phases that tables of these sizes use."""

    def alone(phase: Phase) -> PhaseAlone:
        def run(state: LoopState, row: jax.Array, operands: Operands) -> LoopState:
            phases = Phases(spec, sizes, programs, operands.params, operands.micro, operands.keys)
            methods = {
                Phase.FORWARD: phases.forward,
                Phase.RECOMPUTE: phases.recompute,
                Phase.BACKWARD: phases.backward,
                Phase.WEIGHT: phases.weight,
            }
            return methods[phase](state, row)

        return run

    used = {
        Phase.FORWARD: True,
        Phase.RECOMPUTE: sizes.recomputes,
        Phase.BACKWARD: any(isinstance(each, BackwardPass) for each in sizes.variants),
        Phase.WEIGHT: sizes.is_split,
    }
    return {phase: alone(phase) for phase in Phase if used[phase]}


def row_shape(spec: PipelineSpec) -> jax.ShapeDtypeStruct:
    """The shape of a row of the table on one device."""
    return jax.ShapeDtypeStruct((num_columns(spec.layout.placement, spec.num_slices),), jnp.int32)


def _microbatches(spec: PipelineSpec, batch: PyTree, key: PyTree) -> tuple[Microbatches, PyTree]:
    """Shapes of one replica's microbatches and of their keys."""

    def shard(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        rows = leaf.shape[0] // spec.num_replicas
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)

    def shapes(batch: PyTree, key: PyTree) -> tuple[Microbatches, PyTree]:
        micro = cut(batch, spec.num_microbatches)
        return micro, None if key is None else example_keys(key, micro.examples)

    return jax.eval_shape(shapes, jax.tree.map(shard, batch), key)


def _without_first_dim(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def _shape(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
