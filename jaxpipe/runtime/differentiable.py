"""The part of a pytree that carries gradients, and the rest.

Any pytree may travel between stages. Its floating-point leaves have gradients; booleans, integers
and keys travel along and have none.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.runtime.model import PyTree


def has_gradient(leaf: Any) -> bool:
    """Whether an array, or the shape of one, carries a gradient."""
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def split(tree: PyTree) -> tuple[list, list]:
    """The leaves with a gradient, and those without, each in order."""
    leaves = jax.tree.leaves(tree)
    return (
        [leaf for leaf in leaves if has_gradient(leaf)],
        [leaf for leaf in leaves if not has_gradient(leaf)],
    )


def join(like: PyTree, with_gradient: list, without: list) -> PyTree:
    """The tree shaped as `like` whose parts are these: the inverse of `split`."""
    differentiable, other = iter(with_gradient), iter(without)
    return jax.tree.map(
        lambda leaf: next(differentiable) if has_gradient(leaf) else next(other), like
    )
