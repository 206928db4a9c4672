"""Functions whose backwards are hard to cut, and what is counted in their programs."""

from collections.abc import Container
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

WIDTH = 6


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


def scanned_gated(params, x):
    """The case that was tried first: twelve matmuls go each way."""

    def layer(x, layer_params):
        return gated_mlp(layer_params, x), None

    names = ("gate", "up", "down")
    return jax.lax.scan(layer, x, {name: params[f"{name}s"] for name in names})[0]


def scanned_checkpointed(params, x):
    """Each layer is recomputed in the backward's loop, once, for B and W together."""

    @jax.checkpoint
    def layer(x, layer_params):
        return gated_mlp(layer_params, x), None

    names = ("gate", "up", "down")
    return jax.lax.scan(layer, x, {name: params[f"{name}s"] for name in names})[0]


def scanned_backwards(params, x):
    def layer(x, weight):
        return jnp.sin(x @ weight) + x, None

    return jax.lax.scan(layer, x, params["stack"], reverse=True)[0]


def one_weight_in_every_round(params, x):
    """Its gradient is a carry of the backward's loop, which belongs to W."""

    def layer(x, _):
        return jnp.tanh(x @ params["up"]), jnp.mean(x)

    x, means = jax.lax.scan(layer, x, None, length=3)
    return x * jnp.sum(means)


def nested_loops(params, x):
    def inner(x, weight):
        return jnp.tanh(x @ weight), None

    def outer(x, stack):
        x, _ = jax.lax.scan(inner, x, stack)
        return x @ params["up"] + x, None

    return jax.lax.scan(outer, x, params["stacks"])[0]


def checkpointed_nest(params, x):
    """Inner loops are recomputed when the outer loop's backward is."""

    @jax.checkpoint
    def inner(x, weight):
        return jnp.tanh(x @ weight) @ params["up"], None

    @jax.checkpoint
    def outer(x, stack):
        return jax.lax.scan(inner, x, stack)[0] + x, None

    return jax.lax.scan(outer, x, params["stacks"])[0]


def matmuls_kept_in_a_loop(params, x):
    """A checkpoint of each round that keeps matmuls, within calls."""

    @jax.jit
    def layer(x, weight):
        return jax.nn.silu(x @ weight) + x, None

    kept = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)
    return jax.jit(lambda x: jax.lax.scan(kept, x, params["stack"])[0])(x)


def random_in_a_loop(params, x):
    """Keys are carried; what is dropped is drawn again."""

    @jax.checkpoint
    def layer(carry, weight):
        x, key = carry
        key, mine = jax.random.split(key)
        stays = jax.random.bernoulli(mine, 0.5, x.shape)
        return (jnp.where(stays, jnp.tanh(x @ weight), 0.0), key), None

    return jax.lax.scan(layer, (x, jax.random.key(0)), params["stack"])[0][0]


def ordered(params, x):
    """A barrier over an activation and weights orders their gradients, and mixes none."""

    def layer(x, weight):
        x, weight = jax.lax.optimization_barrier((x, weight))
        return jnp.tanh(x @ weight), None

    return jax.lax.scan(layer, x, params["stack"])[0]


def branching_beside_weights(params, x):
    """B and W read what a branch computes again; it holds no weights."""

    def layer(x, weight):
        return jax.lax.cond(x[0, 0, 0] > 0, jnp.sin, jnp.cos, x @ weight), None

    return jax.lax.scan(layer, x, params["stack"])[0] @ params["up"]


def recurrent(params, x):
    """A loop over positions with a state, and its outputs stacked."""

    def position(state, token):
        state = jnp.tanh(state @ params["up"] + token @ params["down"])
        return state, state * token

    _, outputs = jax.lax.scan(position, jnp.zeros_like(x[:, 0]), jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(outputs, 0, 1)


def branching(params, x):
    """Whichever branch runs, it computes both gradients at once."""
    up, down = params["up"], params["down"]
    return x + jax.lax.cond(x[0, 0, 0] > 0, lambda x: x @ up, lambda x: jnp.sin(x @ down), x)


def branching_in_a_loop(params, x):
    def layer(x, weight):
        return branching({"up": weight, "down": params["down"]}, x), None

    return jax.lax.scan(layer, x, params["stack"])[0]


def printing_in_a_loop(params, x):
    """A loop with effects, in the backward as well, runs as it is."""

    @jax.checkpoint
    def layer(x, weight):
        jax.debug.callback(lambda mean: None, jnp.mean(x))
        return jnp.tanh(x @ weight), None

    return jax.lax.scan(layer, x, params["stack"])[0]


def largest(params, x):
    """B reads one result of `top_k`, and W the other. Nothing is hidden in it."""

    @jax.checkpoint
    def choose(params, x):
        values, places = jax.lax.top_k(jnp.sin(x), 3)
        return jnp.tanh(values) @ params["up"] + params["table"][places].sum(axis=-2)

    return x + choose(params, x)


def nearly_largest(params, x):
    """A kernel with several results, of a kind that the cut has never heard of."""

    @jax.checkpoint
    def choose(params, x):
        values, places = jax.lax.approx_max_k(jnp.sin(x), 3)
        return jnp.tanh(values) @ params["up"] + params["table"][places].sum(axis=-2)

    return x + choose(params, x)


def reductions(params, x):
    """They have bodies, for pairs of elements, that are no calls."""

    @jax.checkpoint
    def reduce(params, x):
        x = jax.lax.stop_gradient(x)
        joined = jax.lax.reduce(jnp.cos(x), 0.0, either, (1,))
        windows = jax.lax.reduce_window(x, 0.0, either, (1, 2, 1), (1, 1, 1), "SAME")
        return (windows * joined[:, None]) @ params["up"]

    def either(a, b):
        return a + b + a * b

    return x * 2 + reduce(params, x)


@jax.custom_vjp
def with_its_own_backward(x, weight):
    return x @ weight


def _its_forward(x, weight):
    return x @ weight, (x, weight)


def _its_backward(residuals, gradient):
    """Both gradients by one loop of unknown length, which nobody can look into."""
    x, weight = residuals

    def body(state):
        return state[0] + 1, gradient @ weight.T, jnp.einsum("bsi,bso->io", x, gradient)

    start = (0, jnp.zeros_like(x), jnp.zeros_like(weight))
    _, of_x, of_weight = jax.lax.while_loop(lambda state: state[0] < 1, body, start)
    return of_x, of_weight


with_its_own_backward.defvjp(_its_forward, _its_backward)


def hidden_weights(params, x):
    return jnp.tanh(with_its_own_backward(x, params["up"])) @ params["down"]


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
    scanned_gated: {
        "gates": (4, WIDTH, 12),
        "ups": (4, WIDTH, 12),
        "downs": (4, 12, WIDTH),
    },
    scanned_checkpointed: {
        "gates": (4, WIDTH, 12),
        "ups": (4, WIDTH, 12),
        "downs": (4, 12, WIDTH),
    },
    scanned_backwards: {"stack": (3, WIDTH, WIDTH)},
    one_weight_in_every_round: {"up": (WIDTH, WIDTH)},
    nested_loops: {"stacks": (2, 3, WIDTH, WIDTH), "up": (WIDTH, WIDTH)},
    checkpointed_nest: {"stacks": (2, 3, WIDTH, WIDTH), "up": (WIDTH, WIDTH)},
    matmuls_kept_in_a_loop: {"stack": (3, WIDTH, WIDTH)},
    random_in_a_loop: {"stack": (3, WIDTH, WIDTH)},
    ordered: {"stack": (3, WIDTH, WIDTH)},
    branching_beside_weights: {"stack": (3, WIDTH, WIDTH), "up": (WIDTH, WIDTH)},
    recurrent: {"up": (WIDTH, WIDTH), "down": (WIDTH, WIDTH)},
    branching: {"up": (WIDTH, WIDTH), "down": (WIDTH, WIDTH)},
    branching_in_a_loop: {"stack": (3, WIDTH, WIDTH), "down": (WIDTH, WIDTH)},
    printing_in_a_loop: {"stack": (3, WIDTH, WIDTH)},
    largest: {"up": (3, WIDTH), "table": (WIDTH, WIDTH)},
    nearly_largest: {"up": (3, WIDTH), "table": (WIDTH, WIDTH)},
    reductions: {"up": (WIDTH, WIDTH)},
    hidden_weights: {"up": (WIDTH, WIDTH), "down": (WIDTH, WIDTH)},
}
MATMULS = ("dot_general", "conv_general_dilated")


def count_runs(jaxpr: ClosedJaxpr | Jaxpr, primitives: Container[str] = MATMULS) -> int:
    """How often these primitives run, by default matmuls: those of a loop as often as it does."""
    total = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        total += equation.primitive.name in primitives
        inner = [
            value for value in equation.params.values() if isinstance(value, ClosedJaxpr | Jaxpr)
        ]
        branches = [count_runs(each, primitives) for each in equation.params.get("branches", ())]
        total += max(branches, default=0)
        rounds = equation.params.get("length", 1)
        total += rounds * sum(count_runs(each, primitives) for each in inner)
    return total


def traced_backward(
    function: Any, policy: Any, length: int = 4
) -> tuple[ClosedJaxpr, list, jax.Array]:
    """The backward of a function on so many tokens, residuals, and a gradient."""
    random = np.random.default_rng(0)
    params = {
        name: jnp.asarray(random.normal(size=shape)) for name, shape in SHAPES[function].items()
    }
    x = jnp.asarray(random.normal(size=(2, length, WIDTH)))
    run = function if policy is None else jax.checkpoint(function, policy=policy, prevent_cse=False)
    y, vjp = jax.vjp(run, params, x)
    residuals, structure = jax.tree.flatten(vjp)
    gradient = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)

    def backward(residuals: list, gradient: jax.Array) -> list:
        return jax.tree.leaves(jax.tree.unflatten(structure, residuals)(gradient))

    return jax.make_jaxpr(backward)(residuals, gradient), residuals, gradient


def read_only(values: list, places: Container[int]) -> list:
    """The values, with None for those that are not read."""
    return [value if place in places else None for place, value in enumerate(values)]
