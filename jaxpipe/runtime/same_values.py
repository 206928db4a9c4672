"""Values of the forward that a backward computes once more, found by how they are computed.

Two variables are the same if the same primitive, with the same parameters, makes them from the same
operands: so both programs are numbered, in one numbering, starting from the residuals that the one
hands to the other. (Local value numbering, as in any compiler.) What holds a body of its own, or
has effects, is never the same as anything.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


def same_values(
    forward: ClosedJaxpr, backward: ClosedJaxpr, handed_over: Mapping[Any, Any], wanted: set[Any]
) -> dict[Any, Any]:
    """Which variables of the backward equal some of the forward.

    Args:
        forward: A program without calls.
        backward: Another one.
        handed_over: From inputs of the backward to the variables of the forward they come from.
        wanted: Variables of the forward to look for.

    Returns:
        From variables of the backward, inputs among them, to those of the forward.
    """
    numbering = _Numbering()
    numbering.add(forward)
    numbers = {numbering.of(variable): variable for variable in wanted}
    for mine, theirs in handed_over.items():
        numbering.numbers[mine] = numbering.of(theirs)
    numbering.add(backward)
    variables = [*backward.jaxpr.invars]
    variables += [variable for each in backward.jaxpr.eqns for variable in each.outvars]
    return {
        variable: numbers[numbering.of(variable)]
        for variable in variables
        if numbering.of(variable) in numbers
    }


class _Numbering:
    """A number for every value: equal for values that are made alike."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self._known: dict[tuple, int] = {}
        self._fresh = itertools.count()

    def of(self, atom: Any) -> int:
        """The number of a variable or literal."""
        if isinstance(atom, Literal):
            return self._interned(("literal", str(atom.aval), repr(atom.val)))
        if atom not in self.numbers:
            self.numbers[atom] = next(self._fresh)
        return self.numbers[atom]

    def add(self, program: ClosedJaxpr) -> None:
        """Numbers what the equations of a program make."""
        for equation in program.jaxpr.eqns:
            if equation.effects or _has_body(equation):
                continue
            operands = tuple(self.of(atom) for atom in equation.invars)
            params = tuple(sorted((name, repr(value)) for name, value in equation.params.items()))
            for place, variable in enumerate(equation.outvars):
                key = (equation.primitive.name, params, operands, place)
                self.numbers[variable] = self._interned(key)

    def _interned(self, key: tuple) -> int:
        if key not in self._known:
            self._known[key] = next(self._fresh)
        return self._known[key]


def _has_body(equation: JaxprEqn) -> bool:
    values = equation.params.values()
    flat = [
        each for value in values for each in (value if isinstance(value, tuple | list) else [value])
    ]
    return any(isinstance(value, ClosedJaxpr | Jaxpr) or callable(value) for value in flat)
