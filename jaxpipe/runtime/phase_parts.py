"""What the phases of all models have in common: their rings, the choice of a variant, the loss."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from jaxpipe.lower.table import Column, TableSizes
from jaxpipe.runtime import buffers
from jaxpipe.runtime.conditional import Tie, when
from jaxpipe.runtime.ends import HeadProgram
from jaxpipe.runtime.loop_state import LoopState
from jaxpipe.runtime.microbatch import Microbatches
from jaxpipe.runtime.model import PyTree
from jaxpipe.runtime.programs import Programs
from jaxpipe.runtime.randomness import EMBED, part_keys
from jaxpipe.runtime.spec import PipelineSpec

Carry = TypeVar("Carry")


class Rings:
    """Where the values of all slices or stages go: one set of rings for all."""

    def __init__(self, sizes: TableSizes, programs: Programs) -> None:
        self.stash, self.weight_stash = programs.stash_columns(is_split=sizes.is_split)
        self.kept = programs.kept_columns(is_split=sizes.is_split)


def choose(
    sizes: TableSizes,
    bodies: Mapping[Any, Callable[[Carry, jax.Array], Carry]],
    row: jax.Array,
    column: Column,
    carry: Carry,
) -> Carry:
    """Runs the body for the variant in a column of the row; a lone variant needs no test.

    Args:
        sizes: Sizes of the table, with the variants that occur.
        bodies: For each `Variant`, `(carry, row) -> carry`.
        row: The row.
        column: Which column says the variant.
        carry: Any pytree of arrays.
    """
    present = [variant for variant in bodies if variant in sizes.variants]
    if len(present) == 1:
        return bodies[present[0]](carry, row)
    for variant in present:
        body = bodies[variant]
        carry = when(
            row[column] == variant, lambda tie, carry, body=body: body(carry, tie(row)), carry
        )
    return carry


def run_head(
    spec: PipelineSpec,
    head: HeadProgram,
    outer: PyTree,
    micro: Microbatches,
    state: LoopState,
    row: jax.Array,
    x: PyTree,
    side: PyTree,
    write_gradient: Callable[[list, list], list],
    *,
    slice_number: int = 0,
) -> LoopState:
    """Head and loss of a microbatch, and the gradient that they start.

    Args:
        spec: The pipeline.
        head: Their program.
        outer: The outer parameters.
        micro: This replica's microbatches.
        state: The state.
        row: The row of the table.
        x: What the last layer has made.
        side: `(batch, keys)`.
        write_gradient: Writes the gradient of `x` to the pool of gradients.
        slice_number: Which slice of the microbatch it is.
    """
    microbatch = row[Column.FORWARD_MICROBATCH]
    valid = micro.valid[microbatch]
    place = microbatch * spec.num_slices + slice_number
    batch, keys = side
    side = batch, part_keys(keys, EMBED + 1 + spec.model.num_layers)
    if not spec.trains:
        sums = head.loss(outer, x, side, valid)
        return dataclasses.replace(state, sums=buffers.write(state.sums, sums, place))
    sums, of_outer, gradient = head.run(outer, x, side, valid)
    return dataclasses.replace(
        state,
        gradients=write_gradient(state.gradients, gradient),
        outer_gradients=add_where(head.reached, state.outer_gradients, of_outer),
        sums=buffers.write(state.sums, sums, place),
    )


def add_where(reached: tuple[bool, ...], sums: list, gradients: list) -> list:
    """The sums, with the gradients added to the leaves that are reached."""
    found = iter(gradients)
    return [
        total + next(found).astype(total.dtype) if ok else total
        for total, ok in zip(sums, reached, strict=True)
    ]


def apart(spec: PipelineSpec, row: jax.Array, add: Callable[[Tie, list], list], sums: list) -> list:
    """The sums with the weight gradients of a layer added, apart from its input gradient.

    XLA for CPUs merges what both parts read into the copies that transpose it for W, and computes
    it twice, at a stride. A loop of one trip makes it hand the values over.

    Args:
        spec: The pipeline.
        row: The row of the table, which has a backward.
        add: The sums with the gradients, given what W reads of B through `tie`.
        sums: The sums.
    """
    if spec.mesh.devices.flat[0].platform == "cpu":
        return when(row[Column.BACKWARD] != 0, add, sums)
    return add(lambda tree: tree, sums)


def sum_place(spec: PipelineSpec, chunk: jax.Array) -> jax.Array:
    """Where the gradients of a chunk are summed: frozen chunks have no place."""
    trained = spec.trained_chunks
    if trained == tuple(range(spec.layout.placement.num_chunks)):
        return chunk
    place = [trained.index(each) if each in trained else 0 for each in range(max(trained) + 1)]
    return jax.numpy.array(place, jax.numpy.int32)[chunk]
