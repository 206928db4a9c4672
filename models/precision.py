"""In which dtype sums, statistics and angles are computed."""

import jax.numpy as jnp
from jax.typing import DTypeLike


def at_least_float32(dtype: DTypeLike) -> jnp.dtype:
    """`dtype` itself, or float32 where it has fewer bits.

    `jnp.promote_types` says the same, but not under strict dtype promotion.

    Example:
        >>> at_least_float32("bfloat16"), at_least_float32("float64")
        (dtype('float32'), dtype('float64'))
    """
    return jnp.dtype(dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32)
