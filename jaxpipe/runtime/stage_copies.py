"""Stages that lie on two devices: copies of their weights, and one sum of their gradients.

A bidirectional placement sends some microbatches along a second path, on which every stage lies on
another device than on the first (`jaxpipe.schedule.placement`). Parameters, gradients and optimizer
state exist once, laid out along the first path. A step copies the weights to the devices of the
other paths when it starts, and brings the gradients from there back when the loop has ended: two
transfers a step, whatever the number of microbatches.

    first path            0 1 2 3     device 1 holds stage 1 at rest ...
    second path           3 2 1 0     ... and during the step also stage 2, a copy from device 2
"""

import jax
import jax.numpy as jnp

from jaxpipe.runtime.model import PyTree
from jaxpipe.schedule.placement import Placement

Pairs = tuple[tuple[int, int], ...]
"""`(source, target)` of every device."""


def copy_pairs(placement: Placement) -> tuple[Pairs, ...]:
    """For every path but the first, from where to where the weights of all chunks are copied.

    Raises:
        ValueError: If the stages of one device lie on several devices along another path.

    Example:
        >>> from jaxpipe.schedule.placement import bidirectional_placement
        >>> copy_pairs(bidirectional_placement(3, 2))
        (((0, 2), (1, 1), (2, 0)),)
    """
    first, *others = placement.paths
    found = []
    for path in others:
        pairs = sorted(set(zip(first, path, strict=True)))
        if len(pairs) != len(set(first)) or len(pairs) != len(set(path)):
            raise ValueError(
                "the stages of a device must lie together on one device along every path, since "
                f"their weights are copied together; found the paths {first} and {path}. A "
                f"mirrored path would do: {tuple(max(first) - device for device in first)}"
            )
        found.append(tuple(pairs))
    return tuple(found)


def with_copies(blocks: PyTree, placement: Placement) -> PyTree:
    """The block parameters of a device, and behind them those of the other paths' stages.

    Args:
        blocks: Leaves `[chunks, layers, ...]`.
        placement: Where the stages lie.

    Returns:
        Leaves `[paths * chunks, layers, ...]`.
    """
    paths = copy_pairs(placement)
    if not paths:
        return blocks

    def extend(leaf: jax.Array) -> jax.Array:
        copies = [jax.lax.ppermute(leaf, "pipe", pairs) for pairs in paths]
        return jnp.concatenate([leaf, *copies])

    return jax.tree.map(extend, blocks)


def sum_copies(gradients: list[jax.Array], placement: Placement) -> list[jax.Array]:
    """The gradients of a device's own stages, summed over all paths: the inverse direction.

    Args:
        gradients: Leaves `[paths * chunks, layers, ...]`.
        placement: Where the stages lie.

    Returns:
        Leaves `[chunks, layers, ...]`.
    """
    paths = copy_pairs(placement)
    if not paths:
        return gradients

    def add(leaf: jax.Array) -> jax.Array:
        total, *copies = jnp.split(leaf, 1 + len(paths))
        for copy, pairs in zip(copies, paths, strict=True):
            back = [(target, source) for source, target in pairs]
            total += jax.lax.ppermute(copy, "pipe", back)
        return total

    return [add(leaf) for leaf in gradients]
