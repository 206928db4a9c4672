"""R: what a backward computes before it needs the gradient of the output.

Under `jax.checkpoint` a backward begins by computing values of the forward again. These follow from
the residuals, so they can run in a tick of their own, while the gradient is still on its way. The
cut is that of B and W (`jaxpipe.runtime.program_cut`), at another place:

    residuals -> R -> values              matmuls and other expensive work that no gradient enters
    residuals, values, gradient -> BW     the rest, which `split_backward` cuts into B and W

Cheap work on residuals stays with the backward: it costs less than to hold its results. Of a loop
that recomputes each layer right before its backward, the recomputation becomes a loop of its own,
and its values are stacked: R trades memory for time, like any other R of a schedule.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxpipe.runtime.dataflow import evaluate_atoms, inline, input_shapes, scan_parts
from jaxpipe.runtime.known_values import is_known, known_in_body, known_variables
from jaxpipe.runtime.program_cut import closure, cut_program, is_expensive
from jaxpipe.runtime.scan_split import replace_scans, run_as_two


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecomputeSplit:
    """A backward in two parts. `split_recompute` makes it.

    Attributes:
        values: Shapes of what R computes.
        reads: Positions of the residuals that R reads.
        backward: The rest: a program from residuals, these values and the gradient of the output to
            gradients, to be given to `split_backward`.
    """

    values: tuple[jax.ShapeDtypeStruct, ...]
    reads: frozenset[int]
    backward: ClosedJaxpr
    _program: ClosedJaxpr
    _values: tuple[Any, ...]

    def recompute(self, residuals: list) -> list[jax.Array]:
        """R: the values that the backward goes on from.

        Args:
            residuals: Residuals; those that R does not read may be None.
        """
        num_missing = len(self._program.jaxpr.invars) - len(residuals)
        inputs = [*residuals, *[None] * num_missing]
        return evaluate_atoms(self._program, inputs, self._values, {}, with_effects=False)


def split_recompute(backward: ClosedJaxpr, num_residuals: int) -> RecomputeSplit:
    """Takes what needs no gradient out of a backward.

    Args:
        backward: A program from residuals and the gradient of the output to gradients.
        num_residuals: How many of its inputs are residuals; the others are the gradient.
    """
    program = _hoist(inline(backward), range(num_residuals))
    jaxpr = program.jaxpr
    expensive = _expensive(program, known_variables(program, range(num_residuals)))
    # Equations with effects run in the backward, with all that they read.
    for_effects = [atom for each in jaxpr.eqns if each.effects for atom in each.invars]
    values = cut_program(program, jaxpr.invars, expensive, [*jaxpr.outvars, *for_effects]).kept
    read = closure(program, values)

    def remaining(*inputs: Any) -> list:
        residuals, others = inputs[:num_residuals], inputs[num_residuals:]
        given = dict(zip(values, others[: len(values)], strict=True))
        gradient = others[len(values) :]
        return evaluate_atoms(program, [*residuals, *gradient], jaxpr.outvars, given)

    shapes = tuple(jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in values)
    inputs = input_shapes(program)
    inputs[num_residuals:num_residuals] = shapes
    return RecomputeSplit(
        values=shapes,
        reads=frozenset(place for place in range(num_residuals) if jaxpr.invars[place] in read),
        backward=jax.make_jaxpr(remaining)(*inputs),
        _program=program,
        _values=values,
    )


def _hoist(program: ClosedJaxpr, residuals: Iterable[int]) -> ClosedJaxpr:
    """The same program, where expensive work in loops that needs no gradient has its own loops.

    Args:
        program: A program without calls.
        residuals: Positions of the inputs that don't depend on the gradient.
    """
    known = known_variables(program, residuals)

    def run_scan(equation: JaxprEqn, operands: list) -> list | None:
        if known.issuperset(equation.outvars):
            return None
        num_consts, num_carry = scan_parts(equation)
        given = known_in_body(equation, known)
        body = _hoist(inline(equation.params["jaxpr"]), given)
        known_inside = known_variables(body, given)
        expensive = _expensive(body, known_inside)
        if not expensive:
            return None
        first = [
            place
            for place, atom in enumerate(body.jaxpr.outvars)
            if (num_consts + place in given if place < num_carry else is_known(atom, known_inside))
        ]
        results, _ = run_as_two(equation, operands, body, first, expensive)
        return results

    return replace_scans(program, run_scan)


def _expensive(program: ClosedJaxpr, known: set[Any]) -> list[Any]:
    """The known variables that are results of expensive equations."""
    return [
        variable
        for equation in program.jaxpr.eqns
        if is_expensive(equation)
        for variable in equation.outvars
        if variable in known
    ]
