"""What a backward reads of the state, taken from the pieces instead of from residuals.

A block on one slice reads the state before it, and its backward needs it again: attention's needs
all keys and values. As residuals these would be one copy of the sequence for every slice. But the
pieces are all there until the backward of their slice, so they are read a second time:

- a residual that is a piece, a leaf of the state that grows, or follows from such by cheap work, is
  computed from the pieces;
- so is what the backward itself computes a second time and finds equal to such a leaf
  (`jaxpipe.runtime.same_values`): under a policy of `jax.checkpoint` it starts from the results of
  matmuls, and would need those of keys and values only to build again what the pieces hold.

Residuals that nobody reads any more are dropped.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

from jaxpipe.runtime.dataflow import evaluate_atoms, inline, input_shapes, output_dependencies
from jaxpipe.runtime.program_cut import cheap_from
from jaxpipe.runtime.same_values import same_values
from jaxpipe.runtime.sequence_state import Pieces, SequenceState


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateReads:
    """Variables of a forward that its backward computes from the pieces.

    Attributes:
        atoms: The variables.
        state: The state of the block.
        _wholes: The variables of the leaves that grow.
    """

    atoms: tuple[Any, ...]
    state: SequenceState
    _wholes: tuple[Any, ...]

    def evaluate(self, forward: ClosedJaxpr, inputs: list, pieces: Pieces) -> list[jax.Array]:
        """Their values.

        Args:
            forward: The forward.
            inputs: Its inputs, but for `x`.
            pieces: The pieces of earlier slices, and that of its own.
        """
        leaves = [leaf for leaf in self.state.whole(pieces) if leaf is not None]
        given = dict(zip(self._wholes, leaves, strict=True))
        return evaluate_atoms(forward, inputs, self.atoms, given, with_effects=False)


def read_from_state(
    forward: ClosedJaxpr,
    backward: ClosedJaxpr,
    state: SequenceState,
    *,
    x_places: Sequence[int],
    past_places: Sequence[int],
    wholes: Sequence[int],
    first_residual: int,
) -> tuple[StateReads, list[int], ClosedJaxpr]:
    """Makes a backward read the state.

    Args:
        forward: A program without calls: `(params, x, past, side) -> (..., residuals)`.
        backward: A program from residuals and gradients to gradients.
        state: The state of the block.
        x_places: Which inputs of the forward are `x`.
        past_places: Which are pieces of earlier slices.
        wholes: Which of its outputs are leaves that grow.
        first_residual: Which of its outputs is the first residual; all that follow are residuals.

    Returns:
        What is read, the residuals still needed, and the backward as a program from these, what is
        read, and gradients.
    """
    inputs, outputs = forward.jaxpr.invars, forward.jaxpr.outvars
    residuals = outputs[first_residual:]
    growing = [outputs[place] for place in wholes]
    past = [inputs[place] for place in past_places]
    from_state = _from_state(forward, {inputs[place] for place in x_places}, {*past, *growing})
    program = inline(backward)
    handed_over = dict(zip(program.jaxpr.invars, residuals, strict=False))
    handed_over = {
        mine: each for mine, each in handed_over.items() if not isinstance(each, Literal)
    }
    given = same_values(forward, program, handed_over, set(growing))
    for mine, theirs in handed_over.items():
        if theirs in from_state:
            given.setdefault(mine, theirs)
    everything = list(range(len(residuals))), list(dict.fromkeys(given.values()))
    traced = _trace(program, given, *everything)
    read = frozenset().union(*output_dependencies(traced.jaxpr))
    kept = [number for number in everything[0] if number in read]
    atoms = [
        atom for place, atom in enumerate(everything[1], start=len(residuals)) if place in read
    ]
    reads = StateReads(atoms=tuple(atoms), state=state, _wholes=tuple(growing))
    return reads, kept, _trace(program, given, kept, atoms, len(residuals))


def _trace(
    program: ClosedJaxpr,
    given: dict[Any, Any],
    kept: list[int],
    atoms: list[Any],
    num_residuals: int | None = None,
) -> ClosedJaxpr:
    """A backward as a program from some residuals, values of the forward, and gradients.

    Args:
        program: The backward, from all residuals and gradients.
        given: Its variables that equal variables of the forward.
        kept: The residuals that it gets.
        atoms: The variables of the forward that it gets.
        num_residuals: How many residuals there are in all; by default as many as are kept.
    """
    count = len(kept) if num_residuals is None else num_residuals

    def run(kept_values: list, reads: list, gradients: list) -> list:
        spread: list = [None] * count
        for number, value in zip(kept, kept_values, strict=True):
            spread[number] = value
        values = dict(zip(atoms, reads, strict=True))
        known = {mine: values[theirs] for mine, theirs in given.items() if theirs in values}
        return evaluate_atoms(program, [*spread, *gradients], program.jaxpr.outvars, known)

    shapes = input_shapes(program)
    read_shapes = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in atoms]
    return jax.make_jaxpr(run)([shapes[each] for each in kept], read_shapes, shapes[count:])


def _from_state(forward: ClosedJaxpr, x: set[Any], state: set[Any]) -> set[Any]:
    """The variables that follow from the state, and other things than `x`, by cheap work."""
    free = {variable for variable in forward.jaxpr.invars if variable not in x}
    cheap = cheap_from(free | state | set(forward.jaxpr.constvars), forward.jaxpr.eqns)
    found = set(state)
    for equation in forward.jaxpr.eqns:
        if cheap.issuperset(equation.outvars) and not found.isdisjoint(
            atom for atom in equation.invars if not isinstance(atom, Literal)
        ):
            found.update(equation.outvars)
    return found
