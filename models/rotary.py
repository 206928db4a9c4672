"""Rotary positions: queries and keys are turned by angles that grow with their position.

Su, Lu, Pan, Murtadha, Wen, Liu, 2021, RoFormer: Enhanced Transformer with Rotary Position
Embedding, arXiv 2104.09864, section 3.2.2. The product of a turned query and a turned key depends
on the distance of their positions alone.

Here feature `i` pairs with feature `i + head_dim / 2` (the layout of published Llama weights in
their Hugging Face form), not with its neighbour as in the paper: a fixed permutation of features,
which the weights of queries and keys absorb.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.precision import at_least_float32


def rotary_angles(
    positions: Int[Array, "batch sequence"], *, head_width: int, base: float, dtype: str
) -> Float[Array, "batch sequence 1 pairs"]:
    """The angle of each pair of features at each position, in float32 or better.

    Angle `i` of position `p` is `p * base ** (-2 i / head_width)`. `positions` may be `[1,
    sequence]`: the angles are then shared by the batch.
    """
    precise = at_least_float32(dtype)
    exponents = jnp.arange(0, head_width, 2).astype(precise) / head_width
    frequencies = jnp.power(jnp.asarray(base, precise), -exponents)  # [pairs]
    return positions.astype(precise)[:, :, None, None] * frequencies


def rotate(
    x: Float[Array, "batch sequence heads head_width"],
    angles: Float[Array, "#batch sequence 1 pairs"],
) -> Float[Array, "batch sequence heads head_width"]:
    """Turns each pair of features by its angle; computed in the angles' dtype, returned in x's."""
    first, second = jnp.split(x.astype(angles.dtype), 2, axis=-1)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
