"""What follows from some inputs of a program alone, such as a backward's residuals.

A backward computes two kinds of values: those that depend on the gradient it is given, and those
that don't: what `jax.checkpoint` recomputes. The second kind can run before the gradient arrives.
"""

from collections.abc import Iterable
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from jaxpipe.runtime.dataflow import (
    Inputs,
    equation_dependencies,
    output_dependencies,
    read_variables,
    scan_parts,
)


def known_variables(program: ClosedJaxpr, places: Iterable[int]) -> set[Any]:
    """The variables that depend on no other inputs than those at these places.

    What an equation with effects computes is not among them: it must not run at another time.
    """
    jaxpr = program.jaxpr
    known: set[Any] = {*jaxpr.constvars, *(jaxpr.invars[place] for place in places)}
    for equation in jaxpr.eqns:
        if equation.effects:
            continue
        read_by = equation_dependencies(equation)
        for variable, reads in zip(equation.outvars, read_by, strict=True):
            if known.issuperset(read_variables(equation, reads)):
                known.add(variable)
    return known


def known_in_body(equation: JaxprEqn, known: set[Any]) -> Inputs:
    """The inputs of a scan's body that follow, in every round, from known variables alone."""
    num_consts, num_carry = scan_parts(equation)
    read_by = output_dependencies(equation.params["jaxpr"])
    carried = range(num_consts, num_consts + num_carry)
    places = {place for place, atom in enumerate(equation.invars) if is_known(atom, known)}
    while True:
        lost = {
            place
            for place in carried
            if place in places and not places.issuperset(read_by[place - num_consts])
        }
        if not lost:
            return frozenset(places)
        places -= lost


def is_known(atom: Any, known: set[Any]) -> bool:
    """Whether an atom is a known variable or a literal."""
    return isinstance(atom, Literal) or atom in known
