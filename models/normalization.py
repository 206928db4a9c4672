"""Normalization of each token's features, with statistics in float32 or better.

LayerNorm: Ba, Kiros, Hinton, 2016, Layer Normalization, arXiv 1607.06450.
RMSNorm: Zhang, Sennrich, 2019, Root Mean Square Layer Normalization, arXiv 1910.07467.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.config import GPTConfig
from models.precision import at_least_float32


class LayerNorm(nnx.Module):
    """Subtracts the mean, divides by the standard deviation, scales, and shifts if biased."""

    def __init__(self, config: GPTConfig) -> None:
        self.epsilon = config.norm_epsilon
        self.scale = nnx.Param(jnp.ones((config.width,), config.param_dtype))
        self.bias = (
            nnx.Param(jnp.zeros((config.width,), config.param_dtype)) if config.use_bias else None
        )

    def __call__(self, x: Float[Array, "*token width"]) -> Float[Array, "*token width"]:
        """Normalizes the last dim; the output has the dtype of the input."""
        precise = x.astype(at_least_float32(x.dtype))
        centred = precise - precise.mean(axis=-1, keepdims=True)
        y = _divide_by_root_mean_square(centred, self.epsilon) * self.scale[...].astype(
            centred.dtype
        )
        if self.bias is not None:
            y = y + self.bias[...].astype(y.dtype)
        return y.astype(x.dtype)


class RMSNorm(nnx.Module):
    """Divides by the root mean square and scales; no mean, no shift."""

    def __init__(self, config: GPTConfig) -> None:
        self.epsilon = config.norm_epsilon
        self.scale = nnx.Param(jnp.ones((config.width,), config.param_dtype))

    def __call__(self, x: Float[Array, "*token width"]) -> Float[Array, "*token width"]:
        """Normalizes the last dim; the output has the dtype of the input."""
        precise = x.astype(at_least_float32(x.dtype))
        y = _divide_by_root_mean_square(precise, self.epsilon) * self.scale[...].astype(
            precise.dtype
        )
        return y.astype(x.dtype)


def _divide_by_root_mean_square(x: Array, epsilon: float) -> Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + epsilon)


def build_norm(config: GPTConfig) -> LayerNorm | RMSNorm:
    """The normalization that a configuration asks for."""
    return LayerNorm(config) if config.norm == "layernorm" else RMSNorm(config)
