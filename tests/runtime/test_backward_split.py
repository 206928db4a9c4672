"""B and W together are the backward: the same gradients, and the same matmuls."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from jaxpipe.runtime.backward_split import BackwardSplit, split_backward

WIDTH = 6
SELECTIVE = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def mlp(params, x):
    return x + jax.nn.gelu(x @ params["up"]) @ params["down"]


def gated_mlp(params, x):
    return x + (jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]


def attention(params, x):
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    normal = x * jax.lax.rsqrt(mean_square + 1e-5) * params["scale"]
    query, key, value = (normal @ params[name] for name in ("query", "key", "value"))
    scores = jax.nn.softmax(query @ jnp.swapaxes(key, -1, -2))
    return x + scores @ value @ params["output"]


def shared_weight(params, x):
    return jnp.tanh(jnp.tanh(x @ params["up"]) @ params["up"])


def several_results(params, x):
    """An operation with several outputs before a linear layer."""
    left, right = jnp.split(x, 2, axis=-1)
    return x + jnp.concatenate([right, left], axis=-1) @ params["up"]


def einsum(params, x):
    return x + jnp.einsum("bsw,whv->bsv", x, params["cube"])


def convolution(params, x):
    return x + jax.lax.conv_general_dilated(
        x, params["kernel"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


def lookup(params, x):
    """A table that is read at places which follow from the input."""
    places = jnp.argmax(jax.lax.stop_gradient(x), axis=-1)
    return x * 2 + params["table"][places]


def scanned(params, x):
    def layer(x, weight):
        return jnp.tanh(x @ weight), None

    return jax.lax.scan(layer, x, params["stack"])[0]


SHAPES = {
    mlp: {"up": (WIDTH, 12), "down": (12, WIDTH)},
    gated_mlp: {"gate": (WIDTH, 12), "up": (WIDTH, 12), "down": (12, WIDTH)},
    attention: {
        "scale": (WIDTH,),
        **dict.fromkeys(("query", "key", "value", "output"), (WIDTH, WIDTH)),
    },
    shared_weight: {"up": (WIDTH, WIDTH)},
    several_results: {"up": (WIDTH, WIDTH)},
    einsum: {"cube": (WIDTH, 2, WIDTH)},
    convolution: {"kernel": (3, WIDTH, WIDTH)},
    lookup: {"table": (WIDTH, WIDTH)},
    scanned: {"stack": (3, WIDTH, WIDTH)},
}
NAMES = [function.__name__ for function in SHAPES]


def count_matmuls(jaxpr: ClosedJaxpr | Jaxpr) -> int:
    """Matmuls and convolutions, those of a loop as often as it runs."""
    total = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        total += equation.primitive.name in ("dot_general", "conv_general_dilated")
        inner = [
            value for value in equation.params.values() if isinstance(value, ClosedJaxpr | Jaxpr)
        ]
        total += equation.params.get("length", 1) * sum(count_matmuls(each) for each in inner)
    return total


def traced(function: Any, policy: Any) -> tuple[ClosedJaxpr, BackwardSplit, list, jax.Array, int]:
    """The backward of a function, its split, residuals, a gradient, and how many weights it has."""
    random = np.random.default_rng(0)
    params = {
        name: jnp.asarray(random.normal(size=shape)) for name, shape in SHAPES[function].items()
    }
    x = jnp.asarray(random.normal(size=(2, 4, WIDTH)))
    run = function if policy is None else jax.checkpoint(function, policy=policy, prevent_cse=False)
    y, vjp = jax.vjp(run, params, x)
    residuals, structure = jax.tree.flatten(vjp)
    gradient = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)

    def backward(residuals: list, gradient: jax.Array) -> list:
        return jax.tree.leaves(jax.tree.unflatten(structure, residuals)(gradient))

    whole = jax.make_jaxpr(backward)(residuals, gradient)
    count = len(params)
    split = split_backward(whole, len(residuals), list(range(count)), [count])
    return whole, split, residuals, gradient, count


@pytest.mark.parametrize("policy", [None, SELECTIVE], ids=["everything kept", "matmuls kept"])
@pytest.mark.parametrize("function", SHAPES, ids=NAMES)
def test_gradients_are_those_of_the_whole_backward(float64, function, policy):
    whole, split, residuals, gradient, count = traced(function, policy)

    def both(residuals: list, gradient: jax.Array) -> list:
        # Each part gets only what it says it reads.
        for_input = [r if n in split.input_reads else None for n, r in enumerate(residuals)]
        for_weights = [r if n in split.weight_reads else None for n, r in enumerate(residuals)]
        of_input, kept = split.backward_input([*for_input, gradient])
        assert [each.shape for each in kept] == [each.shape for each in split.kept]
        return [*split.backward_weight(for_weights, kept), *of_input]

    expected = jax.jit(jaxpr_as_fun(whole))(*residuals, gradient)
    found = jax.jit(both)(residuals, gradient)
    assert len(found) == count + 1
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("policy", [None, SELECTIVE], ids=["everything kept", "matmuls kept"])
@pytest.mark.parametrize("function", SHAPES, ids=NAMES)
def test_no_matmul_runs_twice(float64, function, policy):
    whole, split, residuals, gradient, _ = traced(function, policy)
    of_input = jax.make_jaxpr(lambda *inputs: split.backward_input(list(inputs)))
    of_weights = jax.make_jaxpr(split.backward_weight)
    matmuls_of_input = count_matmuls(of_input(*residuals, gradient))
    matmuls_of_weights = count_matmuls(of_weights(residuals, list(split.kept)))
    assert matmuls_of_input + matmuls_of_weights == count_matmuls(whole)
    if function is not scanned:  # a loop is not cut: B runs all of it
        expected = {mlp: 2, gated_mlp: 3, shared_weight: 2, several_results: 1, einsum: 1}
        assert matmuls_of_weights == expected.get(function, matmuls_of_weights)
        assert matmuls_of_weights > 0 or function is lookup
    else:
        assert matmuls_of_weights == 0


def test_cheap_values_are_computed_again_rather_than_kept(float64):
    """The activation's value is not handed over: only output gradients of the two matmuls are."""
    _, split, _, gradient, _ = traced(mlp, SELECTIVE)
    hidden = (*gradient.shape[:-1], 12)
    assert sorted(each.shape for each in split.kept) == sorted([gradient.shape, hidden])
