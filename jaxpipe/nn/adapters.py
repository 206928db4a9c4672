"""Layers for `Sequential` that are no NNX modules: functions with parameters, and Linen modules."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen, nnx

from jaxpipe.nn.by_name import call_by_name
from jaxpipe.runtime.model import PyTree


class WithParams(nnx.Module):
    """A function together with its parameters. `with_params` and `from_linen` make it.

    Attributes:
        function: `(params, x, ...) -> y`.
        params: A pytree of dicts and lists of `nnx.Param`.
    """

    def __init__(self, function: Callable, params: PyTree) -> None:
        self.function = function
        self.params = nnx.data(jax.tree.map(nnx.Param, params))

    def __call__(self, x: PyTree, *, batch: PyTree = None, keys: jax.Array | None = None) -> PyTree:
        """The function of these parameters."""
        values = jax.tree.map(
            lambda leaf: leaf[...],
            self.params,
            is_leaf=lambda node: isinstance(node, nnx.Param),
        )
        return call_by_name(self.function, "the function", (values, x), batch, keys)


def with_params(function: Callable, params: PyTree) -> WithParams:
    """A layer that is a function of parameters.

    Args:
        function: `(params, x, ...) -> y`, which may ask for entries of the batch by name.
        params: Dicts and lists of arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = with_params(lambda params, x: x * params["scale"], {"scale": jnp.full(3, 2.0)})
        >>> layer(jnp.ones(3))
        Array([2., 2., 2.], dtype=float32)
    """
    return WithParams(function, params)


def from_linen(module: linen.Module, variables: Mapping[str, Any], **options: Any) -> WithParams:
    """A Linen module and its parameters as a layer.

    Args:
        module: The module.
        variables: What its `init` returned: parameters, and nothing else.
        options: Passed on in every call, such as `deterministic=True`.

    Raises:
        ValueError: If there are other variables, such as batch statistics.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import linen
        >>> dense = linen.Dense(2)
        >>> layer = from_linen(dense, dense.init(jax.random.key(0), jnp.ones((1, 3))))
        >>> layer(jnp.ones((4, 3))).shape
        (4, 2)
    """
    if others := sorted(set(variables) - {"params"}):
        raise ValueError(
            f"a pipeline trains Linen modules that have parameters alone; found {others} in the "
            f"variables of {type(module).__name__}"
        )
    _, *asks = inspect.signature(module.__call__).parameters  # besides its input

    def apply(params: PyTree, x: PyTree, batch: PyTree = None) -> PyTree:
        entries = batch if isinstance(batch, Mapping) else {}
        passed = {name: value for name, value in entries.items() if name in asks}
        return module.apply({"params": params}, x, **{**passed, **options})

    return WithParams(apply, variables.get("params", {}))
