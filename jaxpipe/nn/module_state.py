"""NNX modules and the values of their variables, apart and together."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def merge(structure: nnx.GraphDef, like: nnx.State, pure: Mapping) -> Any:
    """The module of a structure with the values of a pure dict."""
    state = jax.tree.map(lambda leaf: leaf, like)
    nnx.replace_by_pure_dict(state, dict(pure))
    return nnx.merge(structure, state)


def shape_of(leaf: Any, drop: int = 0) -> jax.ShapeDtypeStruct:
    """The shape of a variable's value without its first `drop` dims."""
    return jax.ShapeDtypeStruct(leaf.shape[drop:], leaf.dtype)


def differences(expected: nnx.State, found: nnx.State) -> list[str]:
    """Every parameter that one state lacks, or has in another shape or dtype."""

    def table(state: nnx.State) -> dict[str, str]:
        return {
            jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state))
        }

    wanted, given = table(expected), table(found)
    return [
        f"{name} is {given.get(name, 'missing')} instead of {wanted.get(name, 'absent')}"
        for name in sorted({*wanted, *given})
        if wanted.get(name) != given.get(name)
    ]


def check_variables(model: nnx.Module) -> None:
    """Raises ValueError if the model holds variables that are no floating-point `nnx.Param`s."""
    problems = []
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        name = ".".join(map(str, path))
        if not isinstance(variable, nnx.Param):
            problems.append(f"{name} is a {type(variable).__name__}")
        elif not jnp.issubdtype(variable.dtype, jnp.floating):
            problems.append(f"{name} has dtype {variable.dtype}")
    if problems:
        raise ValueError(
            "a pipeline trains models whose variables are all floating-point nnx.Params, because "
            "state that changes in a call would depend on how the batch is cut up. Found: "
            f"{'; '.join(problems[:5])}{' ...' if len(problems) > 5 else ''}. For dropout, take "
            "`keys` as an argument instead of an nnx.Rngs; compute constants in the call, or mark "
            "them nnx.Param"
        )
