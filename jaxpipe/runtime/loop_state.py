"""What one device carries from tick to tick: buffers, messages and sums."""

import dataclasses
import functools
from collections.abc import Iterator

import jax

from jaxpipe.lower.table import TableSizes
from jaxpipe.runtime import buffers
from jaxpipe.runtime.loss import LossSums
from jaxpipe.runtime.model import Leaf, Params, PyTree
from jaxpipe.runtime.programs import Programs
from jaxpipe.runtime.spec import PipelineSpec


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopState:
    """What one device carries from tick to tick.

    Attributes:
        activations: Received activations, `[slots, ...]`.
        gradients: Received gradients, and those of the loss, `[slots, ...]`.
        inputs: Inputs of stages kept for R, `[slots, ...]`.
        stashes: What layers keep for BW, or for B, `[slots, max_layers, ...]`.
        weight_stashes: What layers keep for W where backwards are split, likewise.
        kept: What B leaves for W, likewise.
        states: Pieces of the state of blocks, where microbatches come in slices, likewise.
        state_gradients: The gradients of these, likewise.
        send_activation: What the last forward made.
        send_gradient: What the last backward made.
        block_gradients: Sums for the block parameters that a gradient reaches,
            `[trained chunks, max_layers, ...]`.
        outer_gradients: Sums for all outer parameters.
        sums: Loss sums `[num_microbatches * num_slices]`.
    """

    activations: PyTree
    gradients: list[Leaf]
    inputs: PyTree
    stashes: list[Leaf]
    weight_stashes: list[Leaf]
    kept: list[Leaf]
    states: list[Leaf]
    state_gradients: list[Leaf]
    send_activation: PyTree
    send_gradient: list[Leaf]
    block_gradients: list[Leaf]
    outer_gradients: list[Leaf]
    sums: LossSums


def state_shapes(
    spec: PipelineSpec, sizes: TableSizes, programs: Programs, stored: Params
) -> LoopState:
    """The shapes of the state.

    Args:
        spec: The pipeline.
        sizes: Sizes of the table.
        programs: The programs of the model.
        stored: Parameters of one device or their shapes, in the dtype of the sums: blocks
            `[chunks, max_layers, ...]`.
    """
    gradient = programs.gradient
    layers = spec.layout.max_layers
    for_backward, for_weights = programs.stash_columns(is_split=sizes.is_split)
    kept = programs.kept_columns(is_split=sizes.is_split)
    leaves = zip(jax.tree.leaves(stored.blocks), programs.reached, strict=True)
    return LoopState(
        activations=_slots(programs.x, sizes.num_activations),
        gradients=_slots(gradient, sizes.num_gradients),
        inputs=_slots(programs.x, sizes.num_inputs),
        stashes=_slots(list(for_backward.shapes), sizes.num_stashes, layers),
        weight_stashes=_slots(list(for_weights.shapes), sizes.num_weight_stashes, layers),
        kept=_slots(list(kept.shapes), sizes.num_weight_gradients, layers),
        states=_slots(list(programs.piece), sizes.num_states, layers),
        state_gradients=_slots(list(programs.piece_gradient), sizes.num_state_gradients, layers),
        send_activation=_slots(programs.x),
        send_gradient=_slots(gradient),
        block_gradients=_slots(
            [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf, ok in leaves if ok],
            len(spec.trained_chunks),
        ),
        outer_gradients=_slots(jax.tree.leaves(stored.outer)),
        sums=_slots(programs.head.sums, spec.num_microbatches * spec.num_slices),
    )


def initial_state(shapes: LoopState, zeros: Iterator[jax.Array], *, poison: bool) -> LoopState:
    """Empty buffers and sums of zero; buffers are filled with NaN if they are to be poisoned."""
    make = functools.partial(buffers.make_ring, (), zeros=zeros)
    names = [field.name for field in dataclasses.fields(LoopState)]
    sums = ("block_gradients", "outer_gradients", "sums")
    return LoopState(
        **{name: make(getattr(shapes, name), poison=poison and name not in sums) for name in names}
    )


def _slots(tree: PyTree, *slots: int) -> PyTree:
    """The shapes of a ring of such values."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*slots, *leaf.shape), leaf.dtype), tree)
