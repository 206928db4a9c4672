"""Random keys that do not depend on how a step is cut up.

A key is derived in the order step, example, part, and the model goes on with site and token
position. None of these changes with the number of stages, of microbatches or of data-parallel
replicas, nor with the schedule or recomputation, so dropout masks are the same for all of them.
"""

import jax
import jax.numpy as jnp

EMBED = 0
"""The part number of the embedding. Block `l` is part `1 + l`; the head follows the last block."""


def example_keys(key: jax.Array, examples: jax.Array) -> jax.Array:
    """A key for every example, from the step's key and an array of ids: of the ids' shape."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, examples.ravel())
    return keys.reshape(examples.shape)


def part_keys(keys: jax.Array | None, part: int | jax.Array) -> jax.Array | None:
    """The keys of one part of the model, for every example; None stays None."""
    if keys is None:
        return None
    return jax.vmap(jax.random.fold_in, (0, None))(keys, part)


def check_step_key(key: jax.Array | None) -> None:
    """Raises unless `key` is None or one typed key."""
    if key is None:
        return
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"key must be one typed PRNG key such as jax.random.key(0), or None for a step without "
            f"randomness; found {type(key).__name__}"
            + (f" of dtype {key.dtype}" if isinstance(key, jax.Array) else "")
            + ". jax.random.wrap_key_data makes one of an old uint32 key."
        )
    if key.shape:
        raise ValueError(
            f"key must be one key for the whole step; found an array of shape {key.shape}: pass "
            "key[0], or jax.random.fold_in(key, step) of a single key"
        )
