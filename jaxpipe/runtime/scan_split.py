"""Loops taken apart: a scan that serves two purposes becomes two scans.

The backward of a `jax.lax.scan` computes, round by round, the gradient that is handed on to the
next round and the gradients of the weights. To put these into B and W the loop itself has to be
cut:

    scan(body)  ->  scan(first half of body)     carries what B needs; also stacks, round by round,
                                                 the values that cross from the one to the other
                    scan(second half of body)    reads them; carries the sums of weight gradients

Bodies may hold loops again. Nothing is built by hand: the program is traced anew with two calls of
`jax.lax.scan` where one stood. Recomputation is taken out of loops in the same way
(`jaxpipe.runtime.recompute_split`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from jaxpipe.runtime.dataflow import (
    carried_along,
    evaluate_atoms,
    inline,
    input_shapes,
    read_atom,
    run_equation,
    scan_parts,
)
from jaxpipe.runtime.known_values import known_in_body, known_variables
from jaxpipe.runtime.program_cut import Cut, closure, cut_sparingly


def split_scans(
    program: ClosedJaxpr, first: Sequence[int], residuals: Iterable[int]
) -> tuple[ClosedJaxpr, list[JaxprEqn]]:
    """The same program, with two scans for every one that makes something for both halves.

    Args:
        program: A program without calls.
        first: Positions of the outputs of the first half.
        residuals: Positions of the inputs that don't depend on the gradient.

    Returns:
        The program, and the equations inside the bodies of its loops that stay whole and compute
        gradients.
    """
    jaxpr = program.jaxpr
    of_first = closure(program, [jaxpr.outvars[place] for place in first])
    known = known_variables(program, residuals)
    read = {
        atom
        for atoms in [jaxpr.outvars, *(equation.invars for equation in jaxpr.eqns)]
        for atom in atoms
        if not isinstance(atom, Literal)
    }
    whole: list[JaxprEqn] = []

    def run_scan(equation: JaxprEqn, operands: list) -> list | None:
        used = [place for place, each in enumerate(equation.outvars) if each in read]
        for_first = [place for place in used if equation.outvars[place] in of_first]
        if len(for_first) in (0, len(used)):
            return None
        _, num_carry = scan_parts(equation)
        carried, _ = carried_along(equation, for_first)
        first = [*carried, *(place for place in for_first if place >= num_carry)]
        given = known_in_body(equation, known)
        body, inside = split_scans(inline(equation.params["jaxpr"]), first, given)
        known_inside = known_variables(body, given)
        results, cut = run_as_two(equation, operands, body, first, before_gradient=known_inside)
        whole.extend([*gradients_of(cut.whole, known_inside), *inside])
        return results

    return replace_scans(program, run_scan), whole


def gradients_of(equations: Iterable[JaxprEqn], known: set[Any]) -> list[JaxprEqn]:
    """The equations that compute gradients, rather than something from residuals alone."""
    return [equation for equation in equations if not known.issuperset(equation.outvars)]


def replace_scans(
    program: ClosedJaxpr, run_scan: Callable[[JaxprEqn, list], list | None]
) -> ClosedJaxpr:
    """The same program, with something else for its scans.

    Args:
        program: A program without calls.
        run_scan: Computes the results of a scan from its operands, or returns None for a scan that
            stays as it is. Scans with effects stay in any case.
    """
    jaxpr = program.jaxpr

    def run(*inputs: Any) -> list:
        values: dict = dict(zip(jaxpr.constvars, program.consts, strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))
        for equation in jaxpr.eqns:
            results = None
            if equation.primitive.name == "scan" and not equation.effects:
                results = run_scan(equation, [read_atom(values, atom) for atom in equation.invars])
            if results is None:
                run_equation(equation, list(range(len(equation.outvars))), True, values)
            else:
                values.update(zip(equation.outvars, results, strict=True))
        return [read_atom(values, atom) for atom in jaxpr.outvars]

    return jax.make_jaxpr(run)(*input_shapes(program))


def run_as_two(
    equation: JaxprEqn,
    operands: list,
    body: ClosedJaxpr,
    first: Sequence[int],
    also_first: Sequence[Any] = (),
    before_gradient: set[Any] | None = None,
) -> tuple[list, Cut]:
    """The results of a scan, by a scan for some of its results and one for the others.

    Args:
        equation: The scan.
        operands: Its operands.
        body: Its body, without calls.
        first: Positions of the results of the first scan. These must hold what it carries.
        also_first: Variables of the body that the first scan computes if the second reads them.
        before_gradient: Variables of the body that depend on no gradient.

    Returns:
        The results of the scan, and where the body was cut.
    """
    num_consts, num_carry = scan_parts(equation)
    carried = [place for place in first if place < num_carry]
    num_outputs = len(equation.outvars)
    second = [place for place in range(num_outputs) if place not in first]
    variables, outputs = body.jaxpr.invars, body.jaxpr.outvars
    # The second scan has the same constants and scanned arrays, and its own carry.
    given_to_first = {num_consts + place for place in carried}
    known = [each for place, each in enumerate(variables) if place not in given_to_first]
    atoms_of_first, atoms_of_second = (
        [outputs[place] for place in part] for part in (first, second)
    )
    cut = cut_sparingly(
        body, known, [*atoms_of_first, *also_first], atoms_of_second, before_gradient or set()
    )
    consts, starts = operands[:num_consts], operands[num_consts:][:num_carry]
    scanned = operands[num_consts + num_carry :]
    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}

    def inputs_of(places: list[int], carry: list, scanned: list) -> list:
        spread: list = [None] * num_carry
        for place, value in zip(places, carry, strict=True):
            spread[place] = value
        return [*consts, *spread, *scanned]

    def first_round(carry: list, scanned: list) -> tuple[list, list]:
        wanted = [*atoms_of_first, *cut.kept]
        found = evaluate_atoms(body, inputs_of(carried, carry, scanned), wanted, {})
        return found[: len(carried)], found[len(carried) :]

    others = [place for place in range(num_carry) if place not in carried]

    def second_round(carry: list, scanned: tuple[list, list]) -> tuple[list, list]:
        given = dict(zip(cut.kept, scanned[1], strict=True))
        inputs = inputs_of(others, carry, scanned[0])
        found = evaluate_atoms(body, inputs, atoms_of_second, given)
        return found[: len(others)], found[len(others) :]

    start = [starts[place] for place in carried]
    ends, stacked = jax.lax.scan(first_round, start, scanned, **options)
    num_stacked = len(first) - len(carried)
    read_scanned = [
        value if variables[num_consts + num_carry + place] in cut.reads else None
        for place, value in enumerate(scanned)
    ]
    other_ends, other_stacked = jax.lax.scan(
        second_round,
        [starts[place] for place in others],
        (read_scanned, stacked[num_stacked:]),
        **options,
    )
    found = dict(zip(first, [*ends, *stacked[:num_stacked]], strict=True))
    found.update(zip(second, [*other_ends, *other_stacked], strict=True))
    return [found[place] for place in range(num_outputs)], cut
