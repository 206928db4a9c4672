"""Forward and backward of one layer as two programs, with a described stash between them.

`jax.vjp` keeps whatever the backward reads as residuals. The engine has to store these in slots,
and must not store what it has anyway: a residual may be a parameter itself, or follow from
parameters alone (a transpose, a cast, a scale broadcast to the activations' shape); stored once per
slot and layer, those would be copies of the weights. So the block is traced once and each residual
gets a source:

    PARAMETER   is a parameter: read from the parameters again
    SIDE        is part of the batch or a key: read by microbatch id again
    AGAIN       follows from parameters and constants alone: computed again, by the equations needed
    STASH       anything else: kept in a slot

Where microbatches come in slices, a block also reads the state that earlier slices have left, and
leaves a piece of its own (`jaxpipe.runtime.sequence_state`). The pieces are kept for the slices
that follow, so what the backward reads of them, or of anything that cheaply follows from them, is
no residual either (`jaxpipe.runtime.state_reads`).

What is kept at all is the choice of a `jax.checkpoint` policy. Keeping everything costs five arrays
for one GELU; keeping the results of matmuls and computing the elementwise rest again is the
default.

The same trace tells which parameters a gradient reaches, so that zeros are never added up.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from jaxpipe.runtime.backward_split import BackwardSplit, split_backward
from jaxpipe.runtime.dataflow import evaluate, inline, output_dependencies
from jaxpipe.runtime.differentiable import has_gradient, join, split
from jaxpipe.runtime.model import Layer, LayeredModel, PyTree, StatefulBlock
from jaxpipe.runtime.sequence_state import Pieces, SequenceState
from jaxpipe.runtime.slices import Slice
from jaxpipe.runtime.state_reads import StateReads, read_from_state

Policy = Callable[..., bool]
"""A policy of `jax.checkpoint`: which intermediate values the forward keeps."""


class Source(enum.Enum):
    """Where the backward takes a residual from."""

    PARAMETER = enum.auto()
    SIDE = enum.auto()
    AGAIN = enum.auto()
    STASH = enum.auto()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerProgram:
    """One block, traced for one microbatch or one slice of it. `trace_layer` makes it.

    Attributes:
        stash: Shapes of the values the forward keeps.
        reached: For every parameter leaf, whether a gradient reaches it.
    """

    stash: tuple[jax.ShapeDtypeStruct, ...]
    reached: tuple[bool, ...]
    _x: PyTree  # shapes of the input
    _y: PyTree  # shapes of the output
    _past: Pieces  # shapes of the pieces of state that it reads
    _num_piece: int  # leaves of the piece that it leaves
    _forward: ClosedJaxpr  # (params, x, past, side) leaves -> x, piece, state leaves, residuals
    _backward: ClosedJaxpr  # residuals, state reads, gradients -> gradients of params, x, past
    _sources: tuple[tuple[Source, int], ...]  # of every residual: position within the source
    _stashed: tuple[int, ...]  # which output of the forward fills each stash value
    _state_reads: StateReads | None  # None without state

    @property
    def made(self) -> PyTree:
        """Shapes of what the block makes."""
        return self._y

    def forward(
        self, params: PyTree, x: PyTree, side: PyTree, past: Pieces = ()
    ) -> tuple[PyTree, list[jax.Array], list[jax.Array]]:
        """The block's output, the piece of its state, and the values to stash."""
        return self._run_forward((params, x, past, side), self._stashed)

    def output(
        self, params: PyTree, x: PyTree, side: PyTree, past: Pieces = ()
    ) -> tuple[PyTree, list[jax.Array]]:
        """The block's output and the piece of its state alone."""
        y, piece, _ = self._run_forward((params, x, past, side), ())
        return y, piece

    def _run_forward(
        self, inputs: PyTree, stashed: tuple[int, ...]
    ) -> tuple[PyTree, list[jax.Array], list[jax.Array]]:
        num_y = len(jax.tree.leaves(self._y))
        num_results = num_y + self._num_piece
        positions = [*range(num_results), *stashed]
        results = evaluate(self._forward, jax.tree.leaves(inputs), positions)
        y = jax.tree.unflatten(jax.tree.structure(self._y), results[:num_y])
        return y, results[num_y:num_results], results[num_results:]

    def input_gradient(
        self,
        params: PyTree,
        stash: list[jax.Array],
        side: PyTree,
        gradient: list[jax.Array],
        pieces: Pieces = (),
    ) -> list[jax.Array]:
        """The gradients of the input and of earlier pieces, where no parameter is trained."""
        inputs = [*self._residuals(params, stash, side), *self._read_state(params, side, pieces)]
        positions = range(len(self.reached), len(self._backward.jaxpr.outvars))
        return evaluate(self._backward, [*inputs, *gradient], positions)

    def part_stash(self, stash: list, *, is_split: bool) -> tuple[list, list]:
        """The stash in two: what waits for BW or B, and where backwards are split, for W."""
        waits = set(self.weight_stash) if is_split else set()
        return (
            [value for place, value in enumerate(stash) if place not in waits],
            [value for place, value in enumerate(stash) if place in waits],
        )

    def join_stash(self, for_backward: list | None, for_weights: list, *, is_split: bool) -> list:
        """The stash of two parts: the inverse of `part_stash`, with None for a part not given."""
        places = self.part_stash(list(range(len(self.stash))), is_split=is_split)
        joined: list = [None] * len(self.stash)
        for part, values in zip(places, (for_backward, for_weights), strict=True):
            for place, value in zip(part, values or [None] * len(part), strict=True):
                joined[place] = value
        return joined

    @functools.cached_property
    def backward_split(self) -> BackwardSplit:
        """The backward as B and W."""
        num_params = len(self.reached)
        return split_backward(
            self._backward,
            len(self._sources),
            [place for place, reached in enumerate(self.reached) if reached],
            list(range(num_params, len(self._backward.jaxpr.outvars))),
            num_reads=0 if self._state_reads is None else len(self._state_reads.atoms),
        )

    @functools.cached_property
    def weight_stash(self) -> tuple[int, ...]:
        """Positions of the stash values that W reads, and which therefore wait for it."""
        read = {self._sources[number] for number in self.backward_split.weight_reads}
        return tuple(sorted(place for source, place in read if source is Source.STASH))

    def backward_input(
        self,
        params: PyTree,
        stash: list[jax.Array],
        side: PyTree,
        gradient: list[jax.Array],
        pieces: Pieces = (),
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """B: the gradients of the input and of earlier pieces, and what W needs of this.

        Args:
            params: The block's parameters.
            stash: What the forward kept.
            side: `(batch, keys)`.
            gradient: That of the output, and unless the slice is the last one, that of its piece:
                of the leaves that have one.
            pieces: Those of earlier slices and its own.
        """
        inputs = [*self._residuals(params, stash, side), *self._read_state(params, side, pieces)]
        return self.backward_split.backward_input([*inputs, *gradient])

    def backward_weight(
        self, params: PyTree, stash: list, side: PyTree, kept: list[jax.Array]
    ) -> list[jax.Array]:
        """W: the gradients of the parameter leaves that are reached.

        Of the stash, only the values named by `weight_stash` are read; the others may be None.
        """
        return self.backward_split.backward_weight(self._residuals(params, stash, side), kept)

    def _read_state(self, params: PyTree, side: PyTree, pieces: Pieces) -> list[jax.Array]:
        """What the backward reads of the state."""
        if self._state_reads is None:
            return []
        missing = [None] * len(jax.tree.leaves(self._x))
        past = [
            leaf
            for shapes, piece in zip(self._past, pieces, strict=False)
            for shape, leaf in zip(shapes, piece, strict=True)
            if shape is not None
        ]
        inputs = [*jax.tree.leaves(params), *missing, *past, *jax.tree.leaves(side)]
        return self._state_reads.evaluate(self._forward, inputs, pieces)

    def _residuals(self, params: PyTree, stash: list, side: PyTree) -> list:
        parameters, sides = jax.tree.leaves(params), jax.tree.leaves(side)
        again = [number for source, number in self._sources if source is Source.AGAIN]
        missing = [None] * len(jax.tree.leaves((self._x, self._past)))
        inputs = [*parameters, *missing, *sides]
        recomputed = evaluate(self._forward, inputs, again, with_effects=False)
        found = {
            Source.PARAMETER: dict(enumerate(parameters)),
            Source.SIDE: dict(enumerate(sides)),
            Source.AGAIN: dict(zip(again, recomputed, strict=True)),
            Source.STASH: dict(enumerate(stash)),
        }
        return [found[source][position] for source, position in self._sources]


def trace_layer(
    model: LayeredModel | Layer,
    params: PyTree,
    x: PyTree,
    side: PyTree,
    policy: Policy | None,
    *,
    piece: Slice | None = None,
    state: SequenceState | None = None,
) -> LayerProgram:
    """Traces the block of a model, or one layer of a sequential one.

    Args:
        model: The model, or the layer.
        params: Shapes of one block's parameters.
        x: Shapes of its input.
        side: Shapes of `(batch, keys)` of one microbatch, or of one slice of it.
        policy: What the forward keeps; None keeps everything that the backward reads.
        piece: Which slice this is, if microbatches come in slices.
        state: The block's state, if they do.
    """
    params, x, side = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x, side)
    )
    past = state.past(piece.number) if state and piece else []
    captured = {}

    def block(params: PyTree, x: PyTree, past: Pieces, side: PyTree) -> tuple[PyTree, list, list]:
        if state is None or piece is None or model.stateful is None:
            return model.block(params, x, *side), [], []
        return _with_state(model.stateful, state, piece, params, x, past, side)

    def forward(params: PyTree, x: PyTree, past: Pieces, side: PyTree) -> tuple:
        x_gradient, x_rest = split(x)
        past_gradient, past_rest = split(past)

        def run(params: PyTree, x_gradient: list, past_gradient: list) -> tuple[tuple, tuple]:
            inputs = join(x, x_gradient, x_rest), join(past, past_gradient, past_rest)
            y, added, whole = block(params, *inputs, side)
            (y_gradient, y_rest), (added_gradient, added_rest) = split(y), split(added)
            captured["y"] = jax.tree.map(_abstract, y)
            captured["piece"] = [jax.typeof(leaf) for leaf in added]
            return (y_gradient, added_gradient), (y_rest, added_rest, whole)

        if policy is not None:
            # The backward runs in another loop, so there is nothing to protect from merging.
            run = jax.checkpoint(run, policy=policy, prevent_cse=False)
        (y_gradient, added_gradient), vjp, (y_rest, added_rest, whole) = jax.vjp(
            run, params, x_gradient, past_gradient, has_aux=True
        )
        residuals, captured["vjp"] = jax.tree.flatten(vjp)
        y = join(captured["y"], y_gradient, y_rest)
        added = join(captured["piece"], added_gradient, added_rest)
        return y, added, whole, residuals

    def backward(residuals: list, gradient: list) -> tuple[PyTree, list, list]:
        return jax.tree.unflatten(captured["vjp"], residuals)(_with_zeros(gradient))

    def _with_zeros(gradient: list) -> tuple[list, list]:
        added = split(captured["piece"])[0]
        missing = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in added]
        return gradient[:num_gradients], gradient[num_gradients:] or missing

    closed = jax.make_jaxpr(forward)(params, x, past, side)
    y = captured["y"]
    num_gradients = len(split(y)[0])
    num_x, num_y, num_piece = (len(jax.tree.leaves(each)) for each in (x, y, captured["piece"]))
    num_whole = sum(state.grows) if state else 0
    first_residual = num_y + num_piece + num_whole
    residuals = [_shape(variable) for variable in closed.jaxpr.outvars[first_residual:]]
    gradient = [leaf for leaf in jax.tree.leaves(y) if has_gradient(leaf)]
    if piece and not piece.is_last:
        gradient += [leaf for leaf in captured["piece"] if has_gradient(leaf)]
    closed_backward = jax.make_jaxpr(backward)(residuals, _shapes(gradient))
    kept = list(range(len(residuals)))
    reads = None
    num_params = len(jax.tree.leaves(params))
    if state:
        closed = inline(closed)
        wholes = range(num_y + num_piece, first_residual)
        first_past = num_params + num_x
        reads, kept, closed_backward = read_from_state(
            closed,
            closed_backward,
            state,
            x_places=range(num_params, first_past),
            past_places=range(first_past, first_past + len(jax.tree.leaves(past))),
            wholes=wholes,
            first_residual=first_residual,
        )
    positions = [first_residual + number for number in kept]
    sources, stashed = _sources(closed, num_params, len(jax.tree.leaves((x, past))), positions)
    num_inputs = len(closed_backward.jaxpr.invars)
    from_gradient = frozenset(range(num_inputs - len(gradient), num_inputs))
    reaches = [
        not found.isdisjoint(from_gradient) for found in output_dependencies(closed_backward.jaxpr)
    ]
    return LayerProgram(
        stash=tuple(_shape(closed.jaxpr.outvars[place]) for place in stashed),
        reached=tuple(reaches[:num_params]),
        _x=x,
        _y=y,
        _past=past,
        _num_piece=num_piece,
        _forward=closed,
        _backward=closed_backward,
        _sources=tuple(sources),
        _stashed=tuple(stashed),
        _state_reads=reads,
    )


def _with_state(
    stateful: StatefulBlock,
    state: SequenceState,
    piece: Slice,
    params: PyTree,
    x: PyTree,
    past: Pieces,
    side: PyTree,
) -> tuple[PyTree, list, list]:
    """A block's output on one slice, its piece of the state, and the leaves that grow."""
    batch, _ = side
    initial = jax.tree.leaves(stateful.initial_state(params, x, batch))
    y, after = stateful.block(params, x, state.before(past, initial), *side)
    leaves = jax.tree.leaves(after)
    whole = [leaf for leaf, grows in zip(leaves, state.grows, strict=True) if grows]
    return y, state.piece(leaves, piece), whole


def _sources(
    closed: ClosedJaxpr, num_params: int, num_others: int, positions: Sequence[int]
) -> tuple[list[tuple[Source, int]], list[int]]:
    """The source of every residual, and which outputs are stashed (each variable once).

    Args:
        closed: The forward.
        num_params: Its first inputs, which are parameters.
        num_others: Its inputs between these and those of the side.
        positions: Which of its outputs are residuals.
    """
    jaxpr = closed.jaxpr
    dependencies = output_dependencies(jaxpr)
    inputs = {variable: position for position, variable in enumerate(jaxpr.invars)}
    sources: list[tuple[Source, int]] = []
    stashed: dict = {}  # variable -> output
    for output in positions:
        variable = jaxpr.outvars[output]
        # A literal is no variable, and in some JAX versions can't be hashed.
        position = None if isinstance(variable, Literal) else inputs.get(variable)
        if position is not None and position < num_params:
            sources.append((Source.PARAMETER, position))
        elif position is not None and position >= num_params + num_others:
            sources.append((Source.SIDE, position - num_params - num_others))
        elif all(needed < num_params for needed in dependencies[output]):
            sources.append((Source.AGAIN, output))
        else:
            stashed.setdefault(variable, output)
            sources.append((Source.STASH, list(stashed).index(variable)))
    return sources, list(stashed.values())


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _shapes(leaves: Sequence) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]


def _shape(variable: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)
