"""The two ends of the model as programs: the embedding, and the head with the loss.

The head belongs to the forward of the last stage: it computes the loss of a microbatch and at once
its gradient, so that logits never outlive an action and only the gradient of the last stage's
output is kept. The backward of the embedding belongs to the backward of the first stage and starts
from the batch again: what an embedding's backward reads is the batch (and dropout masks, drawn
again from the same keys), so nothing is kept for it.

Embedding and head may share parameters. Each program says which of the outer parameters its
gradient reaches; the engine adds to those alone.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from jaxpipe.runtime.dataflow import evaluate, output_dependencies
from jaxpipe.runtime.differentiable import join, split
from jaxpipe.runtime.loss import LossSums, weighted_sums
from jaxpipe.runtime.model import LayeredModel, PyTree, SequentialModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadProgram:
    """Head and loss of one microbatch, with their gradients.

    Attributes:
        sums: Shapes of the loss sums.
        reached: For every outer parameter leaf, whether a gradient reaches it.
    """

    sums: LossSums
    reached: tuple[bool, ...]
    _traced: ClosedJaxpr  # outer, x, batch, keys, valid, 1 -> sums, gradients of outer and x

    def run(
        self, outer: PyTree, x: PyTree, side: PyTree, valid: jax.Array
    ) -> tuple[LossSums, list[jax.Array], list[jax.Array]]:
        """The loss sums, the gradients of the outer leaves reached, and the gradient of `x`."""
        num_sums = len(jax.tree.leaves(self.sums))
        wanted = [num_sums + place for place, reached in enumerate(self.reached) if reached]
        rest = range(num_sums + len(self.reached), len(self._traced.jaxpr.outvars))
        one = jnp.ones((), self.sums.loss.dtype)
        inputs = jax.tree.leaves((outer, x, side, valid, one))
        results = evaluate(self._traced, inputs, [*range(num_sums), *wanted, *rest])
        sums = jax.tree.unflatten(jax.tree.structure(self.sums), results[:num_sums])
        return sums, results[num_sums:][: len(wanted)], results[num_sums + len(wanted) :]

    def loss(self, outer: PyTree, x: PyTree, side: PyTree, valid: jax.Array) -> LossSums:
        """The loss sums alone."""
        one = jnp.ones((), self.sums.loss.dtype)
        inputs = jax.tree.leaves((outer, x, side, valid, one))
        results = evaluate(self._traced, inputs, range(len(jax.tree.leaves(self.sums))))
        return jax.tree.unflatten(jax.tree.structure(self.sums), results)


def trace_head(
    model: LayeredModel | SequentialModel,
    outer: PyTree,
    x: PyTree,
    side: PyTree,
    valid: jax.ShapeDtypeStruct,
    *,
    num_tokens: int | None = None,
) -> HeadProgram:
    """Traces head and loss for the shapes of one microbatch, or of a slice of it.

    Args:
        model: The model.
        outer: Shapes of the outer parameters.
        x: Shapes of the last block's output.
        side: Shapes of `(batch, keys)`.
        valid: Which examples are real, `[microbatch_size]`.
        num_tokens: The tokens of the slice, if it is one: the loss must be one for every token.

    Raises:
        ValueError: If it is not.
    """

    def run(
        outer: PyTree, x: PyTree, side: PyTree, valid: jax.Array, one: jax.Array
    ) -> tuple[LossSums, PyTree, list[jax.Array]]:
        x_gradient, x_rest = split(x)
        batch, _ = side

        def loss(outer: PyTree, x_gradient: list) -> tuple[jax.Array, LossSums]:
            outputs = model.head(outer, join(x, x_gradient, x_rest), *side)
            sums = weighted_sums(model.loss(outputs, batch), valid)
            return sums.loss, sums

        _, vjp, sums = jax.vjp(loss, outer, x_gradient, has_aux=True)
        return sums, *vjp(one)

    def sums_alone(outer: PyTree, x: PyTree, side: PyTree, valid: jax.Array) -> LossSums:
        batch, _ = side
        terms = model.loss(model.head(outer, x, *side), batch)
        if num_tokens is not None:
            _check_per_token(terms, num_tokens)
        return weighted_sums(terms, valid)

    sums = jax.eval_shape(sums_alone, outer, x, side, valid)
    closed = jax.make_jaxpr(run)(outer, x, side, valid, sums.loss)
    num_inputs, num_sums = len(closed.jaxpr.invars), len(jax.tree.leaves(sums))
    num_outer = len(jax.tree.leaves(outer))
    # The gradients are linear in the last input, the cotangent of the loss.
    found = output_dependencies(closed.jaxpr)[num_sums : num_sums + num_outer]
    return HeadProgram(
        sums=sums,
        reached=tuple(num_inputs - 1 in needed for needed in found),
        _traced=closed,
    )


def _check_per_token(terms: Any, num_tokens: int) -> None:
    """Raises ValueError unless a loss function returned a loss for every token of a slice."""
    losses = terms[0] if isinstance(terms, tuple) else terms
    shape = getattr(losses, "shape", ())
    if len(shape) < 2 or shape[1] != num_tokens:
        raise ValueError(
            "token slices need a loss for every token, [batch_size, tokens], since a slice knows "
            f"its own tokens alone; the loss function returns {list(shape)} for {num_tokens} "
            "tokens. Let the pipeline weigh and sum, and shift targets when the batch is made"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedProgram:
    """The embedding of one microbatch, and its backward.

    Attributes:
        reached: For every outer parameter leaf, whether a gradient reaches it.
    """

    reached: tuple[bool, ...]
    _model: LayeredModel
    _backward: ClosedJaxpr  # outer, batch, keys, gradient -> gradients of outer

    def forward(self, outer: PyTree, side: PyTree) -> PyTree:
        """The input of the first block."""
        return self._model.embed(outer, *side)

    def backward(self, outer: PyTree, side: PyTree, gradient: list[jax.Array]) -> list[jax.Array]:
        """The gradients of the outer leaves reached, from that of the first block's input."""
        wanted = [place for place, reached in enumerate(self.reached) if reached]
        return evaluate(self._backward, jax.tree.leaves((outer, side, gradient)), wanted)


def trace_embed(model: LayeredModel, outer: PyTree, x: PyTree, side: PyTree) -> EmbedProgram:
    """Traces the backward of the embedding for the shapes of one microbatch."""

    def backward(outer: PyTree, side: PyTree, gradient: list[jax.Array]) -> tuple[PyTree]:
        _, vjp = jax.vjp(lambda outer: split(model.embed(outer, *side))[0], outer)
        return vjp(gradient)

    gradient, _ = split(x)
    closed = jax.make_jaxpr(backward)(outer, side, gradient)
    num_inputs = len(closed.jaxpr.invars)
    from_gradient = frozenset(range(num_inputs - len(gradient), num_inputs))
    return EmbedProgram(
        reached=tuple(
            not needed.isdisjoint(from_gradient) for needed in output_dependencies(closed.jaxpr)
        ),
        _model=model,
        _backward=closed,
    )
