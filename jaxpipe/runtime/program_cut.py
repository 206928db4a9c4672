"""A program cut in two: what its first outputs need, and the rest.

The second half starts from what both may read, and from values that the first half computes and
hands over. It computes cheap values again rather than have them handed over, and never repeats a
matmul.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from jaxpipe.runtime.dataflow import BARRIER, input_places, read_variables

# Primitives with a body of their own that is not looked into.
OPAQUE = frozenset(
    {
        "cond",
        "custom_linear_solve",
        "custom_partitioning",
        "ffi_call",
        "io_callback",
        "pallas_call",
        "pure_callback",
        "shard_map",
        "while",
    }
)

# Primitives that the second half must not run again: much work, messages, or randomness drawn at
# length. So are those with several results, which are fused kernels and loops for the most part.
EXPENSIVE = OPAQUE | {
    "all_gather",
    "all_to_all",
    "cholesky",
    "conv_general_dilated",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dot_general",
    "eigh",
    "fft",
    "householder_product",
    "lu",
    "ppermute",
    "psum",
    "psum_invariant",
    "qr",
    "ragged_all_to_all",
    "ragged_dot_general",
    "random_bits",
    "random_gamma",
    "reduce_scatter",
    "scan",
    "sort",
    "svd",
    "threefry2x32",
    "top_k",
    "triangular_solve",
    "tridiagonal_solve",
}
CHEAP_WITH_SEVERAL_RESULTS = frozenset({"device_put", BARRIER, "reduce", "reduce_window", "split"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a program is cut.

    Attributes:
        kept: The variables that the first half hands over.
        reads: The variables known to both that the second half reads.
        whole: The equations with a body of their own that compute something for both halves at once
            and can't be taken apart: they run in the first half.
    """

    kept: tuple[Any, ...]
    reads: frozenset[Any]
    whole: tuple[JaxprEqn, ...]


def cut_program(
    program: ClosedJaxpr, known: Iterable[Any], first: Sequence[Any], second: Sequence[Any]
) -> Cut:
    """Cuts a program.

    Args:
        program: A program without calls.
        known: Its inputs that the second half has anyway.
        first: The outputs, variables or literals, of the first half.
        second: Those of the second half.
    """
    jaxpr = program.jaxpr
    makers = {variable: each for each in jaxpr.eqns for variable in each.outvars}
    free = set(known) | set(jaxpr.constvars)
    of_first = closure(program, first)
    cheap = cheap_from(free, jaxpr.eqns)
    kept: dict[Any, None] = {}
    reads: set[Any] = set()
    seen: set[Any] = set()
    waiting = [atom for atom in second if not isinstance(atom, Literal)]
    while waiting:
        variable = waiting.pop()
        if variable in seen or variable in jaxpr.constvars:
            continue
        seen.add(variable)
        if variable in free:
            reads.add(variable)
        elif variable not in cheap and _is_of_first(variable, makers, of_first):
            kept[variable] = None
        else:
            waiting += _operands(variable, makers)
    whole = {
        id(makers[variable]): makers[variable]
        for variable in kept
        if variable in makers and variable not in of_first and _is_opaque(makers[variable])
    }
    return Cut(kept=tuple(kept), reads=frozenset(reads), whole=tuple(whole.values()))


def cut_sparingly(
    program: ClosedJaxpr,
    known: Iterable[Any],
    first: Sequence[Any],
    second: Sequence[Any],
    before_gradient: set[Any],
) -> Cut:
    """Cuts a program such that little is handed over.

    Where the second half recomputes something of the forward that the first one does not need, as
    it does with what attention has averaged, it would be handed the operands: scores as large as
    the square of the sequence. The first half computes such values, too, if less is then handed
    over.

    Args:
        program: A program without calls.
        known: Its inputs that the second half has anyway.
        first: The outputs, variables or literals, of the first half.
        second: Those of the second half.
        before_gradient: The variables that depend on no gradient.
    """
    best = cut_program(program, known, first, second)
    needed, of_first = closure(program, second), closure(program, first)
    for equation in program.jaxpr.eqns:
        made = [each for each in equation.outvars if each in needed and each not in of_first]
        if made and is_expensive(equation) and before_gradient.issuperset(made):
            other = cut_program(program, known, [*first, *made], second)
            if _num_bytes(other.kept) < _num_bytes(best.kept):
                best, first = other, [*first, *made]
    return best


def _num_bytes(variables: Iterable[Any]) -> int:
    return sum(math.prod(each.aval.shape) * each.aval.dtype.itemsize for each in variables)


def is_expensive(equation: JaxprEqn) -> bool:
    """Whether an equation must not run twice."""
    name = equation.primitive.name
    is_kernel = equation.primitive.multiple_results and name not in CHEAP_WITH_SEVERAL_RESULTS
    return name in EXPENSIVE or is_kernel


def _is_opaque(equation: JaxprEqn) -> bool:
    """Whether an equation can't be taken apart, unlike loops without effects."""
    name = equation.primitive.name
    return name in OPAQUE or (name == "scan" and bool(equation.effects))


def closure(program: ClosedJaxpr, atoms: Sequence[Any]) -> set[Any]:
    """All variables that these depend on, and they themselves."""
    makers = {variable: each for each in program.jaxpr.eqns for variable in each.outvars}
    found: set[Any] = set()
    waiting = [atom for atom in atoms if not isinstance(atom, Literal)]
    while waiting:
        variable = waiting.pop()
        if variable not in found:
            found.add(variable)
            waiting += _operands(variable, makers) if variable in makers else []
    return found


def _operands(variable: Any, makers: dict[Any, JaxprEqn]) -> list[Any]:
    """What a variable is made of."""
    equation = makers[variable]
    places = [place for place, each in enumerate(equation.outvars) if each is variable]
    return read_variables(equation, input_places(equation, places))


def _is_of_first(variable: Any, makers: dict[Any, JaxprEqn], of_first: set[Any]) -> bool:
    """Whether the first half has this value: it is given, or its equation runs there anyway."""
    if variable not in makers or variable in of_first:
        return True
    equation = makers[variable]
    return equation.primitive.name != BARRIER and not of_first.isdisjoint(equation.outvars)


def cheap_from(free: set[Any], equations: list[JaxprEqn]) -> set[Any]:
    """The variables that follow from known ones by cheap work alone."""
    cheap = set(free)
    for equation in equations:
        variables = [atom for atom in equation.invars if not isinstance(atom, Literal)]
        if not is_expensive(equation) and cheap.issuperset(variables):
            cheap.update(equation.outvars)
    return cheap
