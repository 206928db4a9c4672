"""From what a loss function returns to sums that add up over microbatches and replicas.

A loss function returns one loss per example, or per token, and a weight for each. The value that is
differentiated is

    sum of weights * losses over the whole global batch / sum of weights over the whole global batch

and never a mean of means, so it does not depend on how the batch is cut up: neither on microbatches
with different numbers of valid tokens, nor on examples that were added to fill the last one (their
weight is 0). Sums are accumulated at float32 or better, and divided once, at the end.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.runtime.model import Leaf, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossSums:
    """Weighted sums over some examples.

    Attributes:
        loss: Sum of weights times losses; float scalar, or one for every microbatch.
        weight: Sum of weights.
        metrics: For every metric, the sum of weights times its values.
    """

    loss: Leaf
    weight: Leaf
    metrics: dict[str, Leaf]

    def means(self) -> "LossMeans":
        """The weighted means, over all microbatches."""
        weight = jnp.sum(self.weight)
        metrics = {name: jnp.sum(value) / weight for name, value in self.metrics.items()}
        return LossMeans(jnp.sum(self.loss) / weight, weight, metrics, self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossMeans:
    """The loss and metrics of a whole batch, and how they came about.

    Attributes:
        loss: Weighted mean loss.
        weight: Sum of all weights, such as the number of valid tokens.
        metrics: Weighted mean of every metric.
        microbatches: The sums `[num_microbatches]` by microbatch, over all replicas.
    """

    loss: Leaf
    weight: Leaf
    metrics: dict[str, Leaf]
    microbatches: LossSums


def weighted_sums(terms: Any, valid: jax.Array) -> LossSums:
    """Sums of what a loss function returned for one microbatch.

    Args:
        terms: `losses`, `(losses, weights)` or `(losses, weights, metrics)`. Losses are
            `[batch, ...]`; weights have the same shape or one that its leading dims match, such as
            `[batch]`; metrics is a dict of arrays shaped like the losses.
        valid: bool `[batch]`: False for examples that only fill the microbatch.

    Raises:
        ValueError, TypeError: If the terms have another form.
    """
    losses, weights, metrics = _unpack(terms)
    if not jnp.issubdtype(losses.dtype, jnp.floating) or losses.shape[:1] != valid.shape:
        raise ValueError(
            "the loss function must return one floating-point loss per example (or token): shape "
            f"[{valid.shape[0]}, ...], the batch dim first; found "
            f"{losses.dtype}{list(losses.shape)}. Leave the sum or mean over the batch to the "
            "pipeline, which weighs it globally."
        )
    dtype = losses.dtype if jnp.finfo(losses.dtype).bits >= 32 else jnp.dtype(jnp.float32)
    weights = jnp.ones(valid.shape, dtype) if weights is None else weights.astype(dtype)
    weights = _expand("the weights", weights, losses)
    weights = jnp.where(_expand("valid", valid, losses), weights, 0)

    def weigh(values: jax.Array) -> jax.Array:
        # Where the weight is 0 the value must not matter, even if it is NaN.
        return jnp.sum(jnp.where(weights != 0, values.astype(dtype) * weights, 0))

    for name, values in metrics.items():
        if values.shape != losses.shape:
            raise ValueError(
                f"metric {name!r} must have the shape of the losses, {list(losses.shape)}; found "
                f"{list(values.shape)}"
            )
    sums = {name: jax.lax.stop_gradient(weigh(values)) for name, values in metrics.items()}
    return LossSums(weigh(losses), jax.lax.stop_gradient(jnp.sum(weights)), sums)


def _unpack(terms: Any) -> tuple[jax.Array, jax.Array | None, dict[str, jax.Array]]:
    parts: tuple[PyTree, ...] = terms if isinstance(terms, tuple) else (terms,)
    losses, weights, metrics = (*parts, None, None, None)[:3]
    metrics = {} if metrics is None else metrics
    forms_fit = isinstance(losses, jax.Array) and isinstance(metrics, dict)
    if not forms_fit or len(parts) > 3 or not isinstance(weights, jax.Array | None):
        found = ", ".join(type(part).__name__ for part in parts)
        raise TypeError(
            "the loss function must return losses, (losses, weights) or (losses, weights, metrics) "
            f"with arrays for losses and weights and a dict for metrics; found ({found})"
        )
    return losses, weights, metrics  # pyright: ignore[reportReturnType]


def _expand(name: str, values: jax.Array, losses: jax.Array) -> jax.Array:
    """`values` broadcast over the trailing dims of the losses."""
    if values.shape != losses.shape[: values.ndim]:
        raise ValueError(
            f"{name} must have the leading dims of the losses, {list(losses.shape)}; found "
            f"{list(values.shape)}"
        )
    values = values.reshape(values.shape + (1,) * (losses.ndim - values.ndim))
    return jnp.broadcast_to(values, losses.shape)
