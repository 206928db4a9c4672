"""Dropout whose mask belongs to the token, not to the array that the token happens to be in.

The problem: a pipeline cuts the same batch into microbatches, token slices and shares of replicas
in many ways, and computes some layers twice. The masks must not notice. A counter (as in
`nnx.Dropout`) depends on the order of calls, and one draw for a whole array on its shape.

The idea: every example brings a key, already specific to the step and to the part of the model.
A dropout site folds in its number, then each token's absolute position, and draws the bits of that
token's features from the key it gets. So a token's mask is a function of (key of the example,
site, position), and slicing the batch or the sequence slices the mask, bit for bit.

The cost: one evaluation of the counter-based generator per token, beside one per two features.
Two tokens of one example with the same position share their masks: when packed documents are
numbered from zero each, that is a (harmless, but real) correlation between documents.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

# A rate is rounded to a multiple of 2**-16: two features share one 32-bit word.
_LEVELS = 1 << 16


def check_example_keys(keys: Array) -> None:
    """Refuses keys from which masks per token cannot be drawn.

    Raises:
        TypeError: `keys` is no typed key array.
        ValueError: It has another shape than `[batch]`, or its generator gives bits that depend
            on the neighbours when it is mapped over a batch.
    """
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise TypeError(
            f"keys must be typed PRNG keys, one per example, but their dtype is {keys.dtype}; "
            "make them with jax.random.key(...) and jax.random.split(...), not PRNGKey"
        )
    if keys.ndim != 1:
        raise ValueError(
            f"keys must be one per example, [batch], but their shape is {keys.shape}; "
            "use jax.random.split(key, batch_size)"
        )
    generator = str(jax.random.key_impl(keys))
    if "rbg" in generator:
        raise ValueError(
            f"keys of the generator {generator!r} give a token other bits when its neighbours "
            "change; make the keys with jax.random.key(seed, impl='threefry2x32')"
        )


def part_keys(
    keys: Key[Array, " batch"] | None, part: int | Int[Array, ""]
) -> Key[Array, " batch"] | None:
    """The examples' keys for one part of the model; None, which means no dropout, stays None."""
    if keys is None:
        return None
    check_example_keys(keys)
    return _fold_in(keys, part)


def _fold_in(keys: Array, number: int | Array) -> Array:
    """Folds one number into the key of every example."""
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)


def keep_mask(keys: Key[Array, "*token"], rate: float, size: int) -> Bool[Array, "*token {size}"]:
    """Draws from each key which of `size` features stay: each with probability `1 - rate`.

    The bits that a key gives do not depend on the other keys in the array.
    """
    num_words = -(-size // 2)

    def draw(key: Key[Array, ""]) -> Array:
        words = jax.random.bits(key, (num_words,), jnp.uint32)
        return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(2 * num_words)[:size]

    mapped: Callable[[Array], Array] = draw
    for _ in range(keys.ndim):
        mapped = jax.vmap(mapped)
    return mapped(keys) >= jnp.uint16(_threshold(rate))


def _threshold(rate: float) -> int:
    return min(round(rate * _LEVELS), _LEVELS - 1)


class Dropout(nnx.Module):
    """Zeroes features at random and scales the others up, so that the mean stays.

    Args:
        rate: Probability that a feature is dropped, in `[0, 1)`, rounded to a multiple of 2^-16.
        site: Number of this dropout within its part of the model: sites of one part differ.

    Example:
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> x, positions = jnp.ones((2, 5, 8)), jnp.arange(5)[None]
        >>> whole = Dropout(0.5, site=1)(x, keys=keys, positions=positions)
        >>> tail = Dropout(0.5, site=1)(x[1:, 3:], keys=keys[1:], positions=positions[:, 3:])
        >>> bool((whole[1:, 3:] == tail).all())
        True
    """

    def __init__(self, rate: float, *, site: int) -> None:
        self.rate = rate
        self.site = site

    def is_active(self, keys: Key[Array, " batch"] | None) -> bool:
        """Whether anything is dropped: there are keys, and a rate above zero."""
        return keys is not None and _threshold(self.rate) > 0

    def __call__(
        self,
        x: Float[Array, "batch sequence width"],
        *,
        keys: Key[Array, " batch"] | None,
        positions: Int[Array, "#batch sequence"],
    ) -> Float[Array, "batch sequence width"]:
        """Drops features of tokens; without keys, or at rate 0, returns `x` itself."""
        if keys is None or not self.is_active(keys):
            return x
        kept = keep_mask(self._token_keys(keys, positions), self.rate, x.shape[-1])
        return self._scale(x, kept)

    def pairs(
        self,
        probabilities: Float[Array, "batch heads queries positions"],
        *,
        keys: Key[Array, " batch"] | None,
        query_positions: Int[Array, "#batch queries"],
        key_positions: Int[Array, "#batch positions"],
    ) -> Float[Array, "batch heads queries positions"]:
        """Drops attention probabilities.

        A pair's bits, one per head, depend on the key of the example, the site and the absolute
        positions of query and key: cutting the range of the queries or of the keys cuts the mask.
        Changing the number of heads changes it.
        """
        if keys is None or not self.is_active(keys):
            return probabilities
        batch_size, num_heads = probabilities.shape[:2]
        key_numbers = _numbers(key_positions, batch_size)
        fold_in_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        pair_keys = jax.vmap(jax.vmap(fold_in_each, in_axes=(0, None)))(
            self._token_keys(keys, query_positions), key_numbers
        )  # [batch, queries, positions]
        kept = keep_mask(pair_keys, self.rate, num_heads)  # [batch, queries, positions, heads]
        return self._scale(probabilities, jnp.moveaxis(kept, -1, 1))

    def _token_keys(
        self, keys: Key[Array, " batch"], positions: Int[Array, "#batch sequence"]
    ) -> Key[Array, "batch sequence"]:
        check_example_keys(keys)
        fold_in_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        site_keys = _fold_in(keys, self.site)
        return jax.vmap(fold_in_each)(site_keys, _numbers(positions, keys.shape[0]))

    def _scale(self, x: Array, kept: Array) -> Array:
        # The rate that the rounded threshold really drops at, so that the mean is exact.
        return jnp.where(kept, x / (1 - _threshold(self.rate) / _LEVELS), jnp.zeros_like(x))


def _numbers(positions: Array, batch_size: int) -> Array:
    """Positions of every example, as the numbers that keys fold in."""
    positions = positions.astype(jnp.uint32)
    return jnp.broadcast_to(positions, (batch_size, positions.shape[-1]))
