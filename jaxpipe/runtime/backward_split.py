"""The backward of a block cut in two: B, the gradient of its input, and W, that of its weights.

Zero-bubble schedules (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241) run W at
another time than B. The backward is one program with two sets of results. B is every equation that
the input's gradient needs. W is the rest, and starts from three kinds of values:

- residuals of the forward, which both may read;
- values that B computes and hands over: the output gradients of the linear layers above all;
- values that B computes from residuals alone, by cheap elementwise work (an activation function
  that the forward did not keep). Handing these over would take memory; W computes them again.

No matmul stands in both, so B and W together run those of the undivided backward. A loop or branch
inside the block is not cut: what B needs of it runs in B, with whatever W needs of it.
"""

import dataclasses
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from jaxpipe.runtime.dataflow import (
    evaluate_atoms,
    inline,
    input_places,
    read_variables,
)

# Primitives that W must not run a second time: much work, or randomness drawn at length.
EXPENSIVE = frozenset(
    {
        "conv_general_dilated",
        "cond",
        "cumlogsumexp",
        "cummax",
        "cumprod",
        "cumsum",
        "custom_jvp_call",
        "custom_vjp_call",
        "dot_general",
        "fft",
        "pallas_call",
        "ragged_dot_general",
        "random_bits",
        "scan",
        "sort",
        "threefry2x32",
        "top_k",
        "while",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackwardSplit:
    """A backward in two parts. `split_backward` makes it.

    Attributes:
        kept: Shapes of what B hands over to W.
        input_reads: Positions of the residuals that B reads.
        weight_reads: Positions of the residuals that W reads.
    """

    kept: tuple[jax.ShapeDtypeStruct, ...]
    input_reads: frozenset[int]
    weight_reads: frozenset[int]
    _program: ClosedJaxpr
    _input_gradients: tuple[Any, ...]
    _weight_gradients: tuple[Any, ...]
    _kept: tuple[Any, ...]

    def backward_input(self, inputs: list) -> tuple[list[jax.Array], list[jax.Array]]:
        """B: the gradients of the input, and the values to keep for W.

        Args:
            inputs: Residuals, then the gradient of the output; residuals that B does not read may
                be None.
        """
        wanted = [*self._input_gradients, *self._kept]
        results = evaluate_atoms(self._program, inputs, wanted, {})
        count = len(self._input_gradients)
        return results[:count], results[count:]

    def backward_weight(self, residuals: list, kept: list[jax.Array]) -> list[jax.Array]:
        """W: the gradients of the weights.

        Args:
            residuals: Residuals; those that W does not read may be None.
            kept: What B handed over.
        """
        num_missing = len(self._program.jaxpr.invars) - len(residuals)
        given = dict(zip(self._kept, kept, strict=True))
        inputs = [*residuals, *[None] * num_missing]
        wanted = self._weight_gradients
        return evaluate_atoms(self._program, inputs, wanted, given, with_effects=False)


def split_backward(
    backward: ClosedJaxpr,
    num_residuals: int,
    weight_gradients: list[int],
    input_gradients: list[int],
) -> BackwardSplit:
    """Cuts a backward.

    Args:
        backward: A program from residuals and the gradient of the output to gradients.
        num_residuals: How many of its inputs are residuals; the others are the gradient.
        weight_gradients: Positions of the outputs that W computes.
        input_gradients: Positions of the outputs that B computes.
    """
    program = inline(backward)
    jaxpr = program.jaxpr
    of_input = tuple(jaxpr.outvars[place] for place in input_gradients)
    of_weights = tuple(jaxpr.outvars[place] for place in weight_gradients)
    makers = {variable: each for each in jaxpr.eqns for variable in each.outvars}
    residuals = {variable: place for place, variable in enumerate(jaxpr.invars[:num_residuals])}
    needed_by_input = _closure(of_input, makers)
    cheap = _cheap_from(set(residuals) | set(jaxpr.constvars), jaxpr.eqns)

    # Walk back from the weights' gradients, and stop where B's work begins.
    kept: dict[Any, None] = {}
    reads: set[int] = set()
    seen: set[Any] = set()
    waiting = [atom for atom in of_weights if not isinstance(atom, Literal)]
    while waiting:
        variable = waiting.pop()
        if variable in seen or variable in jaxpr.constvars:
            continue
        seen.add(variable)
        if variable in residuals:
            reads.add(residuals[variable])
        elif variable not in cheap and _is_of_input(variable, makers, needed_by_input):
            kept[variable] = None
        else:
            equation = makers[variable]
            places = [place for place, each in enumerate(equation.outvars) if each is variable]
            waiting += read_variables(equation, input_places(equation, places))
    b_reads = _closure((*of_input, *kept), makers)
    return BackwardSplit(
        kept=tuple(jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in kept),
        input_reads=frozenset(residuals[each] for each in b_reads if each in residuals),
        weight_reads=frozenset(reads),
        _program=program,
        _input_gradients=of_input,
        _weight_gradients=of_weights,
        _kept=tuple(kept),
    )


def _is_of_input(variable: Any, makers: dict[Any, JaxprEqn], needed_by_input: set) -> bool:
    """Whether B has this value: it is given, or B runs its equation, for this or another result."""
    if variable not in makers:
        return True
    return not needed_by_input.isdisjoint(makers[variable].outvars)


def _closure(atoms: tuple[Any, ...], makers: dict[Any, JaxprEqn]) -> set[Any]:
    """All variables that these depend on, and they themselves."""
    found: set[Any] = set()
    waiting = [atom for atom in atoms if not isinstance(atom, Literal)]
    while waiting:
        variable = waiting.pop()
        if variable in found:
            continue
        found.add(variable)
        if variable in makers:
            equation = makers[variable]
            places = [place for place, each in enumerate(equation.outvars) if each is variable]
            waiting += read_variables(equation, input_places(equation, places))
    return found


def _cheap_from(known: set[Any], equations: list[JaxprEqn]) -> set[Any]:
    """The variables that follow from known ones by cheap work alone."""
    cheap = set(known)
    for equation in equations:
        variables = [atom for atom in equation.invars if not isinstance(atom, Literal)]
        if equation.primitive.name not in EXPENSIVE and cheap.issuperset(variables):
            cheap.update(equation.outvars)
    return cheap
