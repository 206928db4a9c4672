"""Rings of slots: buffers of equal pytrees, read and written one slot at a time.

A ring is a pytree whose leaves have one or more leading dims of slots. Reads and writes are dynamic
slices, which XLA does in place on the carry of a loop.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxpipe.runtime.model import PyTree


def make_ring(slots: Sequence[int], like: PyTree, *, poison: bool = False) -> PyTree:
    """A ring of values shaped as in `like` (arrays or shapes): leaves `[*slots, ...]`.

    Args:
        slots: Sizes of the leading dims.
        like: A pytree of arrays or `jax.ShapeDtypeStruct`.
        poison: Fill floating-point slots with NaN instead of 0, to show that what was never written
            is never used.
    """

    def full(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
        bad = poison and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return jnp.full((*slots, *leaf.shape), jnp.nan if bad else 0, leaf.dtype)

    return jax.tree.map(full, like)


def read(ring: PyTree, *slot: jax.Array | int) -> PyTree:
    """The value in a slot."""

    def leaf(buffer: jax.Array) -> jax.Array:
        rest = buffer.shape[len(slot) :]
        starts = _starts(slot, len(rest))
        return jax.lax.dynamic_slice(buffer, starts, (1,) * len(slot) + rest).reshape(rest)

    return jax.tree.map(leaf, ring)


def write(ring: PyTree, value: PyTree, *slot: jax.Array | int) -> PyTree:
    """The ring with `value` in a slot."""

    def leaf(buffer: jax.Array, new: jax.Array) -> jax.Array:
        starts = _starts(slot, new.ndim)
        return jax.lax.dynamic_update_slice(
            buffer, new.reshape((1,) * len(slot) + new.shape), starts
        )

    return jax.tree.map(leaf, ring, value)


def add(ring: PyTree, value: PyTree, *slot: jax.Array | int) -> PyTree:
    """The ring with `value` added to a slot, in the dtype of the ring."""
    old = read(ring, *slot)
    total = jax.tree.map(lambda old, new: old + new.astype(old.dtype), old, value)
    return write(ring, total, *slot)


def _starts(slot: tuple[jax.Array | int, ...], num_trailing: int) -> list[jax.Array]:
    return [jnp.asarray(index, jnp.int32) for index in (*slot, *(0,) * num_trailing)]
