"""The per-token network of a block, with GELU or SwiGLU.

GELU: Hendrycks, Gimpel, 2016, Gaussian Error Linear Units, arXiv 1606.08415 (the tanh form).
SwiGLU: Shazeer, 2020, GLU Variants Improve Transformer, arXiv 2002.05202.
"""

import math

import jax
from flax import nnx
from jaxtyping import Array, Float

from models.config import GPTConfig
from models.linear import INITIAL_SCALE, Linear


class MLP(nnx.Module):
    """`down(gelu(up(x)))`, or `down(silu(gate(x)) * up(x))`.

    Args:
        config: The model's shape.
        rngs: Where the weights come from.
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs) -> None:
        self.up = Linear(config.width, config.hidden_width, config, rngs=rngs)
        self.gate = (
            Linear(config.width, config.hidden_width, config, rngs=rngs)
            if config.activation == "swiglu"
            else None
        )
        # Scaled down as the attention's output is, for the same reason.
        down_scale = INITIAL_SCALE / math.sqrt(2 * config.num_layers)
        self.down = Linear(config.hidden_width, config.width, config, scale=down_scale, rngs=rngs)

    def __call__(self, x: Float[Array, "*token width"]) -> Float[Array, "*token width"]:
        """Maps each token by itself."""
        if self.gate is None:
            return self.down(jax.nn.gelu(self.up(x), approximate=True))
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))
