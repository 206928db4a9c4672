"""Values between layers that are no arrays.

Whatever a layer returns besides arrays (a bool that says which branch to take, a name, a Python
number) is the same for every microbatch, so it need not be sent: it is part of the structure of
what crosses the border, and the next layer gets it as it was.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime.model import PyTree


class Static:
    """A value as structure: a node without children."""

    def __init__(self, value: Any) -> None:
        self.value = value


jax.tree_util.register_pytree_node(
    Static, lambda static: ((), static.value), lambda value, _: Static(value)
)


def seal(tree: PyTree) -> PyTree:
    """The tree with every leaf that is no array made part of its structure."""

    def leaf(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return jnp.asarray(value)
        return value if isinstance(value, jax.Array) else Static(value)

    return jax.tree.map(leaf, tree)


def unseal(tree: PyTree) -> PyTree:
    """The inverse of `seal`."""

    def is_static(node: Any) -> bool:
        return isinstance(node, Static)

    return jax.tree.map(
        lambda node: node.value if is_static(node) else node, tree, is_leaf=is_static
    )
