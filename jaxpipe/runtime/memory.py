"""How many bytes a step will take on each device, before the step is compiled.

Everything that outlives an action has a size that is known from shapes and from the lowered
schedule: slots times bytes per slot. What an action needs while it runs is up to the compiler, so
each phase of a tick is compiled alone, once, which takes a moment however long the pipeline is.
Then

    temporaries = pools + messages + further accumulators + copies of weights + largest workspace

and tests hold this against what the compiler reports for the whole step. The gradients that a step
returns are the sums that its loop has added up, in the same buffers; only sums beyond these, of
stages that lie on two devices, are temporary.
"""

import dataclasses
import math

import jax
from jax.sharding import SingleDeviceSharding

from jaxpipe.lower.table import TableSizes
from jaxpipe.lower.wires import wires_of
from jaxpipe.runtime.alone import DeviceShapes, PhaseAlone, phases_alone, row_shape
from jaxpipe.runtime.loop_state import LoopState
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.spec import PipelineSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes on one device; all devices run one program and take the same.

    Attributes:
        parameters: Parameters at rest: the blocks of one device, and all outer parameters.
        gradients: Gradients as the step returns them.
        activations: The pool of received activations.
        received_gradients: The pool of received gradients.
        inputs: Inputs of stages kept for a second forward.
        stashes: What layers keep for their backward.
        kept_for_weights: Where backwards are split, what B leaves for W.
        states: Where microbatches come in slices, what slices add to the states of blocks.
        state_gradients: The gradients of these.
        messages: What was made for the neighbours, and the message that is under way.
        accumulators: Sums of gradients inside the loop, beyond those that become the gradients.
        compute_copy: Parameters in the dtype to compute in, if that is another.
        weight_copies: Where a stage lies on two devices, the weights of both paths side by side.
        workspace: What the hungriest phase needs while it runs.
    """

    parameters: int
    gradients: int
    activations: int
    received_gradients: int
    inputs: int
    stashes: int
    kept_for_weights: int
    states: int
    state_gradients: int
    messages: int
    accumulators: int
    compute_copy: int
    weight_copies: int
    workspace: int

    @property
    def temporaries(self) -> int:
        """What the step needs besides its arguments and results."""
        return self.total - self.parameters - self.gradients

    @property
    def total(self) -> int:
        """Everything at once."""
        return sum(dataclasses.astuple(self))


def predict_memory(spec: PipelineSpec, sizes: TableSizes, device: DeviceShapes) -> MemoryPlan:
    """The memory of a step.

    Args:
        spec: The pipeline.
        sizes: Ticks and slots of the lowered schedule.
        device: The shapes of all that one device has.
    """
    state, all_blocks = device.state, device.operands.params.blocks
    sums = (state.block_gradients, state.outer_gradients)
    phases = phases_alone(spec, sizes, device.programs).values()
    return MemoryPlan(
        parameters=num_bytes(device.stored),
        gradients=num_bytes(device.stored),
        activations=num_bytes(state.activations),
        received_gradients=num_bytes(state.gradients),
        inputs=num_bytes(state.inputs),
        stashes=num_bytes((state.stashes, state.weight_stashes)),
        kept_for_weights=num_bytes(state.kept),
        states=num_bytes(state.states),
        state_gradients=num_bytes(state.state_gradients),
        messages=_message_bytes(spec, state),
        accumulators=max(0, num_bytes(sums) - num_bytes(device.stored)),
        compute_copy=_copied_bytes(device.stored, device.computed),
        weight_copies=num_bytes(all_blocks) if len(spec.layout.placement.paths) > 1 else 0,
        workspace=max(_workspace(spec, phase, device) for phase in phases),
    )


def _message_bytes(spec: PipelineSpec, state: LoopState) -> int:
    """Bytes of messages: one of each kind that waits, and one that leaves and arrives."""
    kinds = [num_bytes(state.send_activation), num_bytes(state.send_gradient)]
    return sum(kinds) + 2 * max(kinds) * bool(wires_of(spec.layout.placement))


def num_bytes(tree: PyTree) -> int:
    """Bytes of the arrays of a tree, or of the arrays of these shapes."""
    return sum(
        math.prod(leaf.shape) * jax.dtypes.canonicalize_dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _workspace(spec: PipelineSpec, phase: PhaseAlone, device: DeviceShapes) -> int:
    """Bytes that a phase needs while it runs."""
    target = SingleDeviceSharding(spec.mesh.devices.flat[0])
    operands = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=target),
        (device.state, row_shape(spec), device.operands),
    )
    memory = jax.jit(phase, donate_argnums=0).lower(*operands).compile().memory_analysis()
    if memory is None:
        raise RuntimeError(f"the compiler for {spec.mesh.devices.flat[0]} reports no memory use")
    return memory.temp_size_in_bytes


def _copied_bytes(stored: Params, computed: Params) -> int:
    """Bytes of the parameters whose dtype changes."""
    pairs = zip(jax.tree.leaves(stored), jax.tree.leaves(computed), strict=True)
    return sum(num_bytes(copy) for leaf, copy in pairs if leaf.dtype != copy.dtype)
