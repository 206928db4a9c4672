"""How many bytes a step will take on each device, before the step is compiled.

Everything that outlives an action has a size that is known from shapes and from the lowered
schedule: slots times bytes per slot. What an action needs while it runs is up to the compiler, so
each action is compiled alone, once, which takes a moment however long the pipeline is. Then

    temporaries = pools + messages + accumulators + compute copy + the largest workspace

and tests hold this against what the compiler reports for the whole step.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
from jax.sharding import SingleDeviceSharding

from jaxpipe.lower.table import TableSizes
from jaxpipe.runtime import buffers
from jaxpipe.runtime.differentiable import split
from jaxpipe.runtime.microbatch import cut
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.programs import StagePrograms, trace_programs
from jaxpipe.runtime.randomness import example_keys
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
        messages: Messages on their way to the neighbours.
        accumulators: Sums of gradients inside the loop.
        compute_copy: Parameters in the dtype to compute in, if that is another.
        workspace: What the hungriest action needs while it runs.
    """

    parameters: int
    gradients: int
    activations: int
    received_gradients: int
    inputs: int
    stashes: int
    kept_for_weights: int
    messages: int
    accumulators: int
    compute_copy: int
    workspace: int

    @property
    def temporaries(self) -> int:
        """What the step needs besides its arguments and results."""
        return self.total - self.parameters - self.gradients

    @property
    def total(self) -> int:
        """Everything at once."""
        return sum(dataclasses.astuple(self))


def predict_memory(
    spec: PipelineSpec, sizes: TableSizes, params: Params, batch: PyTree, key: PyTree = None
) -> MemoryPlan:
    """The memory of a step.

    Args:
        spec: The pipeline.
        sizes: Ticks and slots of the lowered schedule.
        params: Shapes of the parameters in pipeline layout.
        batch: Shapes of the batch over all replicas.
        key: The shape of the step's key, or None.
    """
    local = Params(_without_leading(params.blocks), _shapes(params.outer))
    computed = jax.eval_shape(spec.cast, local)
    side, valid = _microbatch_shapes(spec, batch, key)
    programs = trace_programs(spec.model, computed, side, valid, spec.remat.policy)
    gradient, _ = split(programs.x)
    layers = spec.layout.max_layers
    whole_stage = spec.remat.whole_stage
    stash = programs.layer.stash
    waits = set(programs.layer.weight_stash) if sizes.is_split else set()
    for_weights = [stash[place] for place in waits]
    for_backward = [value for place, value in enumerate(stash) if place not in waits]
    kept = programs.layer.backward_split.kept if sizes.is_split else ()
    reached = _reached(programs.layer.reached, local.blocks)
    return MemoryPlan(
        parameters=num_bytes(local),
        gradients=num_bytes(local),
        activations=sizes.num_activations * num_bytes(programs.x),
        received_gradients=sizes.num_gradients * num_bytes(gradient),
        inputs=sizes.num_stashes * num_bytes(programs.x) if whole_stage else 0,
        stashes=layers
        * (
            (1 if whole_stage else sizes.num_stashes) * num_bytes(for_backward)
            + sizes.num_weight_stashes * num_bytes(for_weights)
        ),
        kept_for_weights=layers * sizes.num_weight_gradients * num_bytes(kept),
        messages=num_bytes((programs.x, gradient)),
        accumulators=num_bytes((reached, local.outer)),
        compute_copy=0 if spec.compute_dtype is None else _copied_bytes(local, computed),
        workspace=max(
            _workspace(spec, action, *operands)
            for action, operands in _actions(
                programs, local, computed, side, valid, is_split=sizes.is_split
            )
        ),
    )


def num_bytes(tree: PyTree) -> int:
    """Bytes of the arrays of a tree, or of the arrays of these shapes."""
    return sum(
        math.prod(leaf.shape) * jax.dtypes.canonicalize_dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


Action = Callable[..., PyTree]
"""What runs in a tick: `(state, *operands) -> (state, results)`, the state updated in place."""


def _actions(
    programs: StagePrograms,
    local: Params,
    computed: Params,
    side: PyTree,
    valid: PyTree,
    *,
    is_split: bool,
) -> list[tuple[Action, tuple]]:
    """Every action as the loop runs it, with the shapes of its state and operands."""
    layer = _without_leading(computed.blocks, 2)
    one_side, one_valid = _without_leading(side), _without_leading(valid)
    x, stash = programs.x, list(programs.layer.stash)
    gradient, _ = split(x)
    block_sums = _reached(programs.layer.reached, _without_leading(local.blocks, 2))
    outer_sums = jax.tree.leaves(local.outer)

    def forward(state: PyTree, params: PyTree, x: PyTree, side: PyTree) -> PyTree:
        x, stash = programs.layer.forward(params, x, side)
        return buffers.write(state, stash, 0), x

    def backward(
        state: PyTree, params: PyTree, stash: list, side: PyTree, gradient: list
    ) -> PyTree:
        sums, gradient = programs.layer.backward(params, buffers.read(stash, 0), side, gradient)
        return buffers.add(state, sums), gradient

    def backward_input(
        state: PyTree, params: PyTree, stash: list, side: PyTree, gradient: list
    ) -> PyTree:
        stash = buffers.read(stash, 0)
        gradient, kept = programs.layer.backward_input(params, stash, side, gradient)
        return buffers.write(state, kept, 0), gradient

    def backward_weight(
        state: PyTree, params: PyTree, stash: list, side: PyTree, kept: list
    ) -> PyTree:
        stash, kept = buffers.read((stash, kept), 0)
        sums = programs.layer.backward_weight(params, stash, side, kept)
        return buffers.add(state, sums), ()

    def head(state: PyTree, outer: PyTree, x: PyTree, side: PyTree, valid: jax.Array) -> PyTree:
        sums, outer_gradients, gradient = programs.head.run(outer, x, side, valid)
        return _add(state, programs.head.reached, outer_gradients), (sums, gradient)

    def embed(state: PyTree, outer: PyTree, side: PyTree) -> PyTree:
        return state, programs.embed.forward(outer, side)

    def embed_backward(state: PyTree, outer: PyTree, side: PyTree, gradient: list) -> PyTree:
        outer_gradients = programs.embed.backward(outer, side, gradient)
        return _add(state, programs.embed.reached, outer_gradients), ()

    slots = _one_slot(stash)
    if is_split:
        kept = _one_slot(list(programs.layer.backward_split.kept))
        backwards = [
            (backward_input, (kept, layer, slots, one_side, gradient)),
            (backward_weight, (block_sums, layer, slots, one_side, kept)),
        ]
    else:
        backwards = [(backward, (block_sums, layer, slots, one_side, gradient))]
    return [
        *backwards,
        (embed, ((), computed.outer, one_side)),
        (forward, (slots, layer, x, one_side)),
        (head, (outer_sums, computed.outer, x, one_side, one_valid)),
        (embed_backward, (outer_sums, computed.outer, one_side, gradient)),
    ]


def _one_slot(values: list) -> list:
    return [jax.ShapeDtypeStruct((1, *value.shape), value.dtype) for value in values]


def _workspace(spec: PipelineSpec, action: Action, *operands: PyTree) -> int:
    """Bytes that an action needs while it runs, and leaves as its results."""
    device = SingleDeviceSharding(spec.mesh.devices.flat[0])
    operands = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), operands
    )
    memory = jax.jit(action, donate_argnums=0).lower(*operands).compile().memory_analysis()
    if memory is None:
        raise RuntimeError(f"the compiler for {spec.mesh.devices.flat[0]} reports no memory use")
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + max(0, results)


def _add(sums: list, reached: tuple[bool, ...], gradients: list) -> list:
    found = iter(gradients)
    return [
        buffers.add(total, next(found)) if ok else total
        for total, ok in zip(sums, reached, strict=True)
    ]


def _reached(reached: tuple[bool, ...], tree: PyTree) -> list:
    return [leaf for leaf, ok in zip(jax.tree.leaves(tree), reached, strict=True) if ok]


def _microbatch_shapes(spec: PipelineSpec, batch: PyTree, key: PyTree) -> tuple[PyTree, PyTree]:
    """Shapes of `(batch, keys)` and of the valid mask, cut into one replica's microbatches."""

    def shard(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        rows = leaf.shape[0] // spec.num_replicas
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)

    def shapes(batch: PyTree, key: PyTree) -> tuple[PyTree, PyTree]:
        micro = cut(batch, spec.num_microbatches)
        keys = None if key is None else example_keys(key, micro.examples)
        return (micro.batch, keys), micro.valid

    return jax.eval_shape(shapes, jax.tree.map(shard, batch), key)


def _copied_bytes(stored: Params, computed: Params) -> int:
    """Bytes of the parameters whose dtype changes."""
    pairs = zip(jax.tree.leaves(stored), jax.tree.leaves(computed), strict=True)
    return sum(num_bytes(copy) for leaf, copy in pairs if leaf.dtype != copy.dtype)


def _shapes(tree: PyTree) -> PyTree:
    return _without_leading(tree, 0)


def _without_leading(tree: PyTree, num_dims: int = 1) -> PyTree:
    """The shapes of a tree without their leading dims."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[num_dims:], leaf.dtype), tree)
