from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpipe import Params
from train.config import OptimizerConfig
from train.optimizer import build_optimizer, is_decayed, learning_rate_schedule


def params() -> Any:  # optax's types know no pytree of one's own
    """Two stages of two layers, the second with one layer of padding."""
    present = jnp.array([[[1.0, 1.0]], [[1.0, 0.0]]])  # [device, chunk, layer]
    return Params(
        blocks={
            "kernel": present[..., None, None] * jnp.ones((2, 1, 2, 3, 3)),
            "bias": present[..., None] * jnp.ones((2, 1, 2, 3)),
        },
        outer={"table": jnp.ones((5, 3)), "scale": jnp.ones(3)},
    )


def update(optimizer, gradients: Any, params: Any) -> Any:
    """The updates of a first step, and the state after it."""
    return optimizer.update(gradients, optimizer.init(params), params)


def rates(schedule, *steps):
    return [np.asarray(schedule(step)).item() for step in steps]


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, final_learning_rate_ratio=0.2)
    schedule = learning_rate_schedule(config, 24)
    found = rates(schedule, 0, 2, 4, 14, 24, 30)
    np.testing.assert_allclose(found, [0.25, 0.625, 1.0, 0.6, 0.2, 0.2], rtol=1e-6)


def test_without_warmup_the_first_step_has_the_whole_learning_rate():
    schedule = learning_rate_schedule(OptimizerConfig(learning_rate=0.5), 10)
    assert rates(schedule, 0) == [0.5]


def test_only_what_has_two_dims_decays():
    assert is_decayed(params()) == Params(
        blocks={"kernel": True, "bias": False}, outer={"table": True, "scale": False}
    )


def test_decay_moves_matrices_and_leaves_vectors_alone():
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
    optimizer = build_optimizer(config, 10)
    before = params()
    updates, _ = update(optimizer, optax.tree.zeros_like(before), before)
    np.testing.assert_allclose(updates.outer["table"], -0.05, rtol=1e-6)
    np.testing.assert_array_equal(updates.outer["scale"], 0)
    np.testing.assert_array_equal(updates.blocks["bias"], 0)
    np.testing.assert_allclose(updates.blocks["kernel"], -0.05 * before.blocks["kernel"], rtol=1e-6)


def test_padded_layers_never_move():
    optimizer = build_optimizer(OptimizerConfig(learning_rate=0.1), 10)
    before = params()
    updates, _ = update(optimizer, before, before)
    after: Any = optax.apply_updates(before, updates)
    np.testing.assert_array_equal(after.blocks["kernel"][1, :, 1], 0)
    assert (after.blocks["kernel"][1, :, 0] < 1).all()


@pytest.mark.parametrize("scale", [1.0, 100.0], ids=["small", "large"])
def test_gradients_are_clipped_by_their_norm_over_all_stages(scale):
    config = OptimizerConfig(learning_rate=1.0, max_gradient_norm=20.0)
    gradients = optax.tree.scale(scale, params())
    # Three layers of 9 + 3 numbers, a table of 15 and a scale of 3, all ones.
    norm = scale * np.sqrt(3 * 12 + 18)
    assert float(optax.tree.norm(gradients)) == pytest.approx(norm)
    optimizer = build_optimizer(config, 10)
    _, state = update(optimizer, gradients, params())
    ((_, moments),) = optax.tree.get_all_with_path(state, "mu")
    kept = 0.1 * scale * min(1, 20.0 / norm)
    np.testing.assert_allclose(moments.outer["scale"], kept, rtol=1e-6)
