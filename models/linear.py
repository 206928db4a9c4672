"""Matrix multiplication with weights kept in one dtype and used in another."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.config import GPTConfig

INITIAL_SCALE = 0.02
"""Standard deviation of fresh weights, as in GPT-2."""


def initial_weights(
    shape: tuple[int, ...], scale: float, config: GPTConfig, *, rngs: nnx.Rngs
) -> nnx.Param[Array]:
    """Normal weights of standard deviation `scale`.

    They are drawn in float32 and then cast, so that models which differ in dtype alone start from
    the same numbers.
    """
    weights = scale * jax.random.normal(rngs.params(), shape, jnp.float32)
    return nnx.Param(weights.astype(config.param_dtype))


class Linear(nnx.Module):
    """`x @ kernel + bias`, the bias optional.

    Args:
        in_features: Size of the last dim of the input.
        out_features: Size of the last dim of the output.
        config: Says the dtypes and whether there is a bias.
        scale: Standard deviation of the fresh kernel.
        rngs: Where the kernel comes from.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        config: GPTConfig,
        *,
        scale: float = INITIAL_SCALE,
        rngs: nnx.Rngs,
    ) -> None:
        self.dtype = config.dtype
        self.kernel = initial_weights((in_features, out_features), scale, config, rngs=rngs)
        self.bias = (
            nnx.Param(jnp.zeros((out_features,), config.param_dtype)) if config.use_bias else None
        )

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch outputs"]:
        """Maps the last dim."""
        y = x @ self.kernel[...].astype(self.dtype)
        return y if self.bias is None else y + self.bias[...].astype(self.dtype)
