"""Rings of slots: buffers of equal pytrees, read and written one slot at a time.

A ring is a pytree whose leaves have one or more leading dims of slots. Reads and writes are dynamic
slices, which XLA does in place on the carry of a loop.

What is read or written keeps the memory layout of its buffer. Without that constraint a matmul that
prefers its operand transposed makes the compiler transpose the whole buffer instead of the one
value (seen in code for the H100: a stash of eight slots transposed for every backward).
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from jaxpipe.runtime.model import PyTree


def hidden_zeros(witness: jax.Array) -> Iterator[jax.Array]:
    """Scalars that are 0, which the compiler can neither know nor tell to be equal.

    Buffers of one shape that all start as the constant 0 would be merged into one, and then copied
    one by one when the loop starts: for a moment there would be one more than needed. Filled with
    these, each is its own.

    Args:
        witness: Any integer scalar that is not negative.
    """
    for number in itertools.count(1):
        yield witness == -number


def make_ring(
    slots: Sequence[int], like: PyTree, zeros: Iterator[jax.Array], *, poison: bool = False
) -> PyTree:
    """A ring of values shaped as in `like` (arrays or shapes): leaves `[*slots, ...]`.

    Args:
        slots: Sizes of the leading dims.
        like: A pytree of arrays or `jax.ShapeDtypeStruct`.
        zeros: Where the zeros to fill it with come from.
        poison: Fill floating-point slots with NaN instead of 0, to show that what was never written
            is never used.
    """

    def full(leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
        zero = next(zeros).astype(leaf.dtype)
        bad = poison and jnp.issubdtype(leaf.dtype, jnp.inexact)
        fill = jnp.full((), jnp.nan, leaf.dtype) if bad else zero
        return jnp.broadcast_to(fill, (*slots, *leaf.shape))

    return jax.tree.map(full, like)


def read(ring: PyTree, *slot: jax.Array | int, like: PyTree = None) -> PyTree:
    """The value in a slot.

    Args:
        ring: Leaves `[*slots, ...]`.
        slot: Its number in each of the leading dims.
        like: The shapes of the value, if they are smaller than the slot, in its front corner.
    """

    def leaf(buffer: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        starts = _starts(slot, len(shape))
        sizes = (1,) * len(slot) + shape
        value = _tied(jax.lax.dynamic_slice(buffer, starts, sizes), buffer, slot)
        return _keep_layout(value).reshape(shape)

    if like is None:
        return jax.tree.map(lambda buffer: leaf(buffer, buffer.shape[len(slot) :]), ring)
    return jax.tree.map(lambda value, buffer: leaf(buffer, value.shape), like, ring)


def write(ring: PyTree, value: PyTree, *slot: jax.Array | int) -> PyTree:
    """The ring with `value` in a slot; in its front corner, if the value is smaller."""

    def leaf(buffer: jax.Array, new: jax.Array) -> jax.Array:
        starts = _starts(slot, new.ndim)
        new = _keep_layout(new.reshape((1,) * len(slot) + new.shape))
        return jax.lax.dynamic_update_slice(buffer, new, starts)

    return jax.tree.map(leaf, ring, value)


def add(ring: PyTree, value: PyTree, *slot: jax.Array | int) -> PyTree:
    """The ring with `value` added to a slot, in the dtype of the ring."""
    old = read(ring, *slot, like=value)
    total = jax.tree.map(lambda old, new: old + new.astype(old.dtype), old, value)
    return write(ring, total, *slot)


def put(place: PyTree, value: PyTree) -> PyTree:
    """`value` in the front corner of a place that may be larger."""
    return jax.tree.map(
        lambda old, new: new if old.shape == new.shape else write(old, new), place, value
    )


def read_flat(
    ring: jax.Array, shape: tuple[int, ...], first: int, *slot: jax.Array | int
) -> jax.Array:
    """The value of this shape that begins at an element of a slot of `[*slots, width]`."""
    starts = [jnp.asarray(index, jnp.int32) for index in (*slot, first)]
    sizes = (1,) * len(slot) + (math.prod(shape),)
    return _tied(jax.lax.dynamic_slice(ring, starts, sizes), ring, slot).reshape(shape)


def write_flat(
    ring: jax.Array, value: jax.typing.ArrayLike, first: int, *slot: jax.Array | int
) -> jax.Array:
    """The ring with a value in a slot, from this element on."""
    value = jnp.asarray(value)  # of a constant in a program JAX makes a NumPy array
    starts = [jnp.asarray(index, jnp.int32) for index in (*slot, first)]
    return jax.lax.dynamic_update_slice(ring, value.reshape((1,) * len(slot) + (-1,)), starts)


def _tied(value: jax.Array, ring: jax.Array, slot: tuple[jax.Array | int, ...]) -> jax.Array:
    """What was read from a slot, still depending on which one it was.

    In a ring of a single slot the compiler drops the number of the slot. What is read then follows
    from nothing that a conditional ties to its counter (`jaxpipe.runtime.conditional`), and all
    that is computed from it would be moved out of the conditional, and run in idle ticks, too.
    """
    numbers = [number for number in slot if isinstance(number, jax.Array)]
    if not numbers or max(ring.shape[: len(slot)]) > 1:
        return value
    return jax.lax.optimization_barrier((value, *numbers))[0]


def _keep_layout(value: jax.Array) -> jax.Array:
    """The value with its dims in memory in the order of its shape."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value  # keys have no layout of their own, and are small
    return with_layout_constraint(value, Layout(major_to_minor=tuple(range(value.ndim))))


def _starts(slot: tuple[jax.Array | int, ...], num_trailing: int) -> list[jax.Array]:
    return [jnp.asarray(index, jnp.int32) for index in (*slot, *(0,) * num_trailing)]
