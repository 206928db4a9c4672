"""Sends that wait for another send, so that each travels beside some computation.

XLA's scheduler for GPUs keeps one message under way at a time, and it decides by the chain of
messages that hangs on an instruction what to run beside what. Left alone it starts both messages of
a tick between the forward and the backward, where nothing hides them. If the second one depends on
the first, it starts the first before the forward and the second before the backward (read off the
scheduled text for the H100, and held so by a test).

Only a dependency of values survives until the scheduler runs: an optimization barrier does not.
"""

import functools

import jax
import jax.numpy as jnp

from jaxpipe.runtime.model import PyTree


def after(message: PyTree, *arrived: PyTree) -> PyTree:
    """The message, unchanged, but not before `arrived` is there.

    Args:
        message: A pytree of arrays.
        *arrived: What it waits for: the first array of each.
    """
    witnesses = [
        next(leaf for leaf in jax.tree.leaves(each) if _has_bits(leaf))
        for each in arrived
        if any(_has_bits(leaf) for leaf in jax.tree.leaves(each))
    ]
    if not witnesses:
        return message
    is_there = functools.reduce(jnp.logical_and, map(_always_true, witnesses))

    def wait(leaf: jax.Array) -> jax.Array:
        return jnp.where(is_there, leaf, jnp.zeros_like(leaf)) if _has_bits(leaf) else leaf

    return jax.tree.map(wait, message)


def _always_true(witness: jax.Array) -> jax.Array:
    """True, whatever the witness holds, in a way that the compiler does not see through."""
    first = witness.reshape(-1)[0]
    if first.dtype == jnp.bool_:
        first = first.astype(jnp.uint8)
    size = 8 * first.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(first, jnp.dtype(f"uint{size}"))
    return (bits >> (size - 1)) <= 1


def _has_bits(leaf: jax.Array) -> bool:
    return leaf.size > 0 and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
