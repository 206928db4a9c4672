"""The backward of a block cut in two: B, the gradient of its input, and W, that of its weights.

Zero-bubble schedules (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241) run W at
another time than B. The backward is one program with two sets of results. B is every equation that
the input's gradient needs. W is the rest, and starts from three kinds of values:

- residuals of the forward, which both may read;
- values that B computes and hands over: the output gradients of the linear layers above all;
- values that B computes from residuals alone, by cheap elementwise work (an activation function
  that the forward did not keep). Handing these over would take memory; W computes them again.

No matmul stands in both, so B and W together run those of the undivided backward. Loops inside the
block are cut with it (`jaxpipe.runtime.scan_split`). What can't be cut, a `cond`, a `while` or a
kernel that computes both gradients at once, runs in B, and is reported.
"""

import dataclasses
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from jaxpipe.runtime.dataflow import evaluate_atoms, inline
from jaxpipe.runtime.known_values import known_variables
from jaxpipe.runtime.program_cut import closure, cut_sparingly
from jaxpipe.runtime.scan_split import gradients_of, split_scans


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackwardSplit:
    """A backward in two parts. `split_backward` makes it.

    Attributes:
        kept: Shapes of what B hands over to W.
        input_reads: Positions of the residuals that B reads.
        weight_reads: Positions of the residuals that W reads.
        whole: The primitives that compute gradients for B and for W and could not be cut: all of
            their work is in B.
    """

    kept: tuple[jax.ShapeDtypeStruct, ...]
    input_reads: frozenset[int]
    weight_reads: frozenset[int]
    whole: tuple[str, ...]
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
    *,
    num_reads: int = 0,
) -> BackwardSplit:
    """Cuts a backward.

    Args:
        backward: A program from residuals, other values of the forward and the gradient of the
            output to gradients.
        num_residuals: How many of its inputs are residuals.
        weight_gradients: Positions of the outputs that W computes.
        input_gradients: Positions of the outputs that B computes.
        num_reads: How many inputs behind these are values of the forward that are only there for B.
    """
    before = range(num_residuals + num_reads)
    program, inside = split_scans(inline(backward), input_gradients, before)
    jaxpr = program.jaxpr
    of_input = tuple(jaxpr.outvars[place] for place in input_gradients)
    of_weights = tuple(jaxpr.outvars[place] for place in weight_gradients)
    residuals = {variable: place for place, variable in enumerate(jaxpr.invars[:num_residuals])}
    before_gradient = known_variables(program, before)
    cut = cut_sparingly(program, residuals, of_input, of_weights, before_gradient)
    read_by_b = closure(program, (*of_input, *cut.kept))
    whole = gradients_of(cut.whole, before_gradient)
    return BackwardSplit(
        kept=tuple(jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in cut.kept),
        input_reads=frozenset(residuals[each] for each in read_by_b if each in residuals),
        weight_reads=frozenset(residuals[each] for each in cut.reads),
        whole=tuple(equation.primitive.name for equation in (*whole, *inside)),
        _program=program,
        _input_gradients=of_input,
        _weight_gradients=of_weights,
        _kept=cut.kept,
    )
