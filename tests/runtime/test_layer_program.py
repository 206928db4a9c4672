"""What a block stashes, and where the rest of what its backward reads comes from."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.layer_program import LayerProgram, Source, trace_layer
from tests.runtime.blocks_to_split import count_runs, read_only
from tests.runtime.closeness import FLOAT32, assert_close
from tests.runtime.toy import toy_model

SELECTIVE = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
POLICIES = pytest.mark.parametrize(
    "policy",
    [None, SELECTIVE, jax.checkpoint_policies.nothing_saveable],
    ids=["keep all", "selective", "keep nothing"],
)

# No weight has the size of an activation, so that shapes tell what is stashed.
BATCH, WIDTH, HIDDEN, DEPTH = 5, 4, 6, 3


def random(*shape: int, dtype: str = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape, dtype)


def two_matmuls(params, x, batch, keys):
    return x + jnp.tanh(x @ params["up"]) @ params["down"]


def cast_weights(params, x, batch, keys):
    """The weights are kept in another dtype than the activations."""
    up, down = (params[name].astype(x.dtype) for name in ("up", "down"))
    return x + jnp.tanh(x @ up) @ down


def indexed_weights(params, x, batch, keys):
    """Weights are rows of one array."""
    for layer in range(DEPTH):
        x = x + jnp.tanh(x @ params["up"][layer]) @ params["down"][layer]
    return x


def sublayers_in_a_scan(params, x, batch, keys):
    def sublayer(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    return jax.lax.scan(sublayer, x, params)[0]


def scaled(params, x, batch, keys):
    """A scale that is broadcast to the activations' shape."""
    scale = jnp.broadcast_to(jnp.exp(params["scale"]), x.shape)
    return x * scale + jnp.sin(x) * batch["side"]


PLAIN = {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
STACKED = {"up": (DEPTH, WIDTH, HIDDEN), "down": (DEPTH, HIDDEN, WIDTH)}
BLOCKS: dict[str, tuple[Callable, dict[str, tuple[int, ...]]]] = {
    "two matmuls": (two_matmuls, PLAIN),
    "cast weights": (cast_weights, PLAIN),
    "indexed weights": (indexed_weights, STACKED),
    "scan": (sublayers_in_a_scan, STACKED),
    "scaled": (scaled, {"scale": (WIDTH,)}),
}


def make(name: str) -> tuple[Callable, Any, jax.Array, Any]:
    """A block, its parameters, its input and `(batch, keys)`."""
    block, shapes = BLOCKS[name]
    dtype = "float16" if name == "cast weights" else "float32"
    params = {part: random(*shape, dtype=dtype) * 0.5 for part, shape in shapes.items()}
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    return block, params, random(BATCH, WIDTH), ({"side": random(BATCH, WIDTH)}, None)


def trace(name: str, policy: Any) -> tuple[LayerProgram, Callable, Any, jax.Array, Any]:
    block, params, x, side = make(name)
    program = trace_layer(toy_model(1, block=block), params, x, side, policy)
    return program, block, params, x, side


@POLICIES
@pytest.mark.parametrize("name", BLOCKS)
def test_forward_and_backward_are_those_of_the_block(name, policy):
    program, block, params, x, side = trace(name, policy)

    @jax.jit
    def ours(params, x, gradient):
        y, _, stash = program.forward(params, x, side)
        of_x, kept = program.backward_input(params, stash, side, [gradient])
        of_params = program.backward_weight(params, stash, side, kept)
        alone = program.input_gradient(params, stash, side, [gradient])
        return y, program.output(params, x, side)[0], of_params, of_x, alone

    gradient = random(BATCH, WIDTH)
    y, output, params_gradient, x_gradient, alone = ours(params, x, gradient)
    expected, vjp = jax.vjp(lambda params, x: block(params, x, *side), params, x)
    expected_params, expected_x = vjp(gradient)
    assert_close((y, output), (expected, expected), FLOAT32)
    assert_close((x_gradient, alone), ([expected_x], [expected_x]), FLOAT32)
    tolerance = 1e-2 if name == "cast weights" else FLOAT32  # those gradients are float16
    assert_close(params_gradient, jax.tree.leaves(expected_params), tolerance)


@POLICIES
@pytest.mark.parametrize("name", BLOCKS)
def test_no_weight_is_stashed(name, policy):
    """Neither as itself nor cast, cut out, transposed or broadcast."""
    program, _, params, _, _ = trace(name, policy)
    weights = {leaf.shape[-2:] for leaf in jax.tree.leaves(params) if leaf.ndim > 1}
    weights |= {shape[::-1] for shape in weights}
    assert [leaf for leaf in program.stash if leaf.shape[-2:] in weights] == []
    stashed_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in program.stash)
    # At most what the block computes per example: nothing that grows with the weights alone.
    assert stashed_bytes <= 4 * BATCH * DEPTH * (4 * WIDTH + 4 * HIDDEN)


def sources(program: LayerProgram) -> Counter[Source]:
    return Counter(source for source, _ in program._sources)


def test_where_residuals_come_from():
    program, *_ = trace("two matmuls", SELECTIVE)
    # The input and the first matmul's result; the second's is not read by the backward.
    assert sorted(leaf.shape for leaf in program.stash) == [(BATCH, WIDTH), (BATCH, HIDDEN)]
    assert sources(program)[Source.PARAMETER] == 2
    assert sources(trace("cast weights", None)[0])[Source.AGAIN] >= 1
    assert sources(trace("indexed weights", None)[0])[Source.AGAIN] >= 1
    side = trace("scaled", None)[0]
    assert sources(side)[Source.SIDE] == 1
    assert sources(side)[Source.AGAIN] >= 1


def test_a_value_that_is_read_twice_is_stashed_once():
    def block(params, x, batch, keys):
        y = jnp.sin(x)
        return y * y * params["scale"]

    side = ({"side": random(BATCH, WIDTH)}, None)
    program = trace_layer(
        toy_model(1, block=block), {"scale": random(WIDTH)}, random(BATCH, WIDTH), side, None
    )
    assert len(program._sources) > len(program.stash)
    assert len(set(program._stashed)) == len(program.stash)


def test_gradients_are_made_only_for_parameters_they_reach():
    def block(params, x, batch, keys):
        return x * params["used"] + jax.lax.stop_gradient(params["frozen"])

    params = {name: random(WIDTH) for name in ("frozen", "unused", "used")}
    x, side = random(BATCH, WIDTH), ({}, None)
    program = trace_layer(toy_model(1, block=block), params, x, side, SELECTIVE)
    assert program.reached == (False, False, True)
    _, _, stash = program.forward(params, x, side)
    _, kept = program.backward_input(params, stash, side, [jnp.ones_like(x)])
    found = program.backward_weight(params, stash, side, kept)
    assert len(found) == 1
    np.testing.assert_allclose(found[0], x.sum(axis=0), rtol=1e-6)


@POLICIES
def test_b_and_w_of_a_block_with_a_loop_run_the_matmuls_of_its_backward(policy):
    """A loop over sublayers: two matmuls each go to W, and what W reads waits for it alone."""
    program, _, params, x, side = trace("scan", policy)
    _, _, stash = program.forward(params, x, side)
    _, kept = program.backward_input(params, stash, side, [x])
    of_input = jax.make_jaxpr(
        lambda params, stash: program.backward_input(params, stash, side, [x])
    )
    # Without what only B reads.
    for_weights = read_only(stash, program.weight_stash)
    of_weights = jax.make_jaxpr(
        lambda params, stash, kept: program.backward_weight(params, stash, side, kept)
    )
    in_weights = count_runs(of_weights(params, for_weights, kept))
    assert in_weights == 2 * DEPTH
    in_input = count_runs(of_input(params, stash))
    assert in_input + in_weights == count_runs(program._backward)
    assert program.backward_split.whole == ()
