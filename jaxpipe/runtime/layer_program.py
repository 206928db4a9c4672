"""Forward and backward of one block as two programs, with a described stash between them.

`jax.vjp` keeps whatever the backward reads as residuals. The engine has to store these in slots,
and must not store what it has anyway: a residual may be a parameter itself, or follow from
parameters alone (a transpose, a cast, a scale broadcast to the activations' shape); stored once per
slot and layer, those would be copies of the weights. So the block is traced once and each residual
gets a source:

    PARAMETER   is a parameter: read from the parameters again
    SIDE        is part of the batch or a key: read by microbatch id again
    AGAIN       follows from parameters and constants alone: computed again, by the equations needed
    STASH       anything else: kept in a slot

What is kept at all is the choice of a `jax.checkpoint` policy. Keeping everything costs five arrays
for one GELU; keeping the results of matmuls and computing the elementwise rest again is the
default.

The same trace tells which parameters a gradient reaches, so that zeros are never added up.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

from jaxpipe.runtime.backward_split import BackwardSplit, split_backward
from jaxpipe.runtime.dataflow import evaluate, output_dependencies
from jaxpipe.runtime.differentiable import has_gradient, join, split
from jaxpipe.runtime.model import LayeredModel, PyTree

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
    """One block, traced for one microbatch. `trace_layer` makes it.

    Attributes:
        stash: Shapes of the values the forward keeps.
        reached: For every parameter leaf, whether a gradient reaches it.
    """

    stash: tuple[jax.ShapeDtypeStruct, ...]
    reached: tuple[bool, ...]
    _x: PyTree  # shapes of the input, which are those of the output
    _forward: ClosedJaxpr  # (params, x, side) leaves -> x leaves, residuals
    _backward: ClosedJaxpr  # residuals, gradient -> gradients of params and x
    _sources: tuple[tuple[Source, int], ...]  # of every residual: position within the source
    _stashed: tuple[int, ...]  # which residual fills each stash value

    def forward(self, params: PyTree, x: PyTree, side: PyTree) -> tuple[PyTree, list[jax.Array]]:
        """The block's output and the values to stash."""
        num_x = len(jax.tree.leaves(self._x))
        positions = [*range(num_x), *(num_x + residual for residual in self._stashed)]
        results = evaluate(self._forward, jax.tree.leaves((params, x, side)), positions)
        return jax.tree.unflatten(jax.tree.structure(self._x), results[:num_x]), results[num_x:]

    def output(self, params: PyTree, x: PyTree, side: PyTree) -> PyTree:
        """The block's output alone."""
        num_x = len(jax.tree.leaves(self._x))
        leaves = evaluate(self._forward, jax.tree.leaves((params, x, side)), range(num_x))
        return jax.tree.unflatten(jax.tree.structure(self._x), leaves)

    def backward(
        self, params: PyTree, stash: list[jax.Array], side: PyTree, gradient: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Gradients of the parameter leaves that are reached, and of the input.

        Args:
            params: The block's parameters.
            stash: What `forward` kept.
            side: What `forward` was given.
            gradient: Gradient of the output's differentiable leaves.
        """
        residuals = self._residuals(params, stash, side)
        num_params = len(self.reached)
        num_outputs = len(self._backward.jaxpr.outvars)
        wanted = [position for position, reached in enumerate(self.reached) if reached]
        positions = [*wanted, *range(num_params, num_outputs)]
        results = evaluate(self._backward, [*residuals, *gradient], positions)
        return results[: len(wanted)], results[len(wanted) :]

    @functools.cached_property
    def backward_split(self) -> BackwardSplit:
        """The backward as B and W."""
        num_params = len(self.reached)
        return split_backward(
            self._backward,
            len(self._sources),
            [place for place, reached in enumerate(self.reached) if reached],
            list(range(num_params, len(self._backward.jaxpr.outvars))),
        )

    @functools.cached_property
    def weight_stash(self) -> tuple[int, ...]:
        """Positions of the stash values that W reads, and which therefore wait for it."""
        read = {self._sources[number] for number in self.backward_split.weight_reads}
        return tuple(sorted(place for source, place in read if source is Source.STASH))

    def backward_input(
        self, params: PyTree, stash: list[jax.Array], side: PyTree, gradient: list[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """B: the gradient of the input, and what W needs of this."""
        return self.backward_split.backward_input(
            [*self._residuals(params, stash, side), *gradient]
        )

    def backward_weight(
        self, params: PyTree, stash: list, side: PyTree, kept: list[jax.Array]
    ) -> list[jax.Array]:
        """W: the gradients of the parameter leaves that are reached.

        Of the stash, only the values named by `weight_stash` are read; the others may be None.
        """
        return self.backward_split.backward_weight(self._residuals(params, stash, side), kept)

    def _residuals(self, params: PyTree, stash: list, side: PyTree) -> list:
        parameters, sides = jax.tree.leaves(params), jax.tree.leaves(side)
        num_x = len(jax.tree.leaves(self._x))
        again = [
            number for number, (source, _) in enumerate(self._sources) if source is Source.AGAIN
        ]
        inputs = [*parameters, *[None] * num_x, *sides]
        positions = [num_x + number for number in again]
        recomputed = evaluate(self._forward, inputs, positions, with_effects=False)
        found = {
            Source.PARAMETER: parameters,
            Source.SIDE: sides,
            Source.AGAIN: recomputed,
            Source.STASH: stash,
        }
        return [found[source][position] for source, position in self._sources]


def trace_layer(
    model: LayeredModel, params: PyTree, x: PyTree, side: PyTree, policy: Policy | None
) -> LayerProgram:
    """Traces the block of a model.

    Args:
        model: The model.
        params: Shapes of one block's parameters.
        x: Shapes of its input.
        side: Shapes of `(batch, keys)` of one microbatch.
        policy: What the forward keeps; None keeps everything that the backward reads.
    """
    params, x, side = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x, side)
    )
    captured = {}

    def forward(params: PyTree, x: PyTree, side: PyTree) -> tuple[PyTree, list]:
        x_gradient, x_rest = split(x)

        def run(params: PyTree, x_gradient: list) -> tuple[list, list]:
            return split(model.block(params, join(x, x_gradient, x_rest), *side))

        if policy is not None:
            # The backward runs in another loop, so there is nothing to protect from merging.
            run = jax.checkpoint(run, policy=policy, prevent_cse=False)
        y_gradient, vjp, y_rest = jax.vjp(run, params, x_gradient, has_aux=True)
        residuals, captured["vjp"] = jax.tree.flatten(vjp)
        return join(x, y_gradient, y_rest), residuals

    def backward(residuals: list, gradient: list) -> tuple[PyTree, list]:
        return jax.tree.unflatten(captured["vjp"], residuals)(gradient)

    closed = jax.make_jaxpr(forward)(params, x, side)
    num_x = len(jax.tree.leaves(x))
    residuals = [_shape(variable) for variable in closed.jaxpr.outvars[num_x:]]
    gradient = [leaf for leaf in jax.tree.leaves(x) if has_gradient(leaf)]
    closed_backward = jax.make_jaxpr(backward)(residuals, gradient)
    sources, stashed = _sources(closed, len(jax.tree.leaves(params)), num_x)
    from_gradient = frozenset(range(len(residuals), len(residuals) + len(gradient)))
    reaches = [
        not found.isdisjoint(from_gradient) for found in output_dependencies(closed_backward.jaxpr)
    ]
    return LayerProgram(
        stash=tuple(residuals[number] for number in stashed),
        reached=tuple(reaches[: len(jax.tree.leaves(params))]),
        _x=x,
        _forward=closed,
        _backward=closed_backward,
        _sources=tuple(sources),
        _stashed=tuple(stashed),
    )


def _sources(
    closed: ClosedJaxpr, num_params: int, num_x: int
) -> tuple[list[tuple[Source, int]], list[int]]:
    """The source of every residual, and which residuals are stashed (each variable once)."""
    jaxpr = closed.jaxpr
    dependencies = output_dependencies(jaxpr)[num_x:]
    inputs = {variable: position for position, variable in enumerate(jaxpr.invars)}
    sources: list[tuple[Source, int]] = []
    stashed: dict = {}  # variable -> residual
    num_again = 0
    for number, variable in enumerate(jaxpr.outvars[num_x:]):
        # A literal is no variable, and in some JAX versions can't be hashed.
        position = None if isinstance(variable, Literal) else inputs.get(variable)
        if position is not None and position < num_params:
            sources.append((Source.PARAMETER, position))
        elif position is not None and position >= num_params + num_x:
            sources.append((Source.SIDE, position - num_params - num_x))
        elif all(needed < num_params for needed in dependencies[number]):
            sources.append((Source.AGAIN, num_again))
            num_again += 1
        else:
            stashed.setdefault(variable, number)
            sources.append((Source.STASH, list(stashed).index(variable)))
    return sources, list(stashed.values())


def _shape(variable: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)
