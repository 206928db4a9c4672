"""Linear layers and fresh weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.config import GPTConfig
from models.linear import Linear, initial_weights

CONFIG = GPTConfig(
    vocab_size=16, max_sequence_length=8, num_layers=2, width=8, num_heads=2, use_bias=True
)


def test_it_multiplies_and_adds():
    layer = Linear(8, 3, CONFIG, rngs=nnx.Rngs(0))
    assert layer.bias is not None
    layer.bias[...] = jnp.arange(3.0)
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    expected = np.asarray(x) @ np.asarray(layer.kernel[...]) + np.arange(3.0)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)


def test_biases_are_optional():
    layer = Linear(8, 3, dataclasses.replace(CONFIG, use_bias=False), rngs=nnx.Rngs(0))
    assert layer.bias is None


def test_weights_are_kept_in_one_dtype_and_used_in_another():
    layer = Linear(8, 3, dataclasses.replace(CONFIG, dtype="bfloat16"), rngs=nnx.Rngs(0))
    assert layer.kernel.dtype == jnp.float32
    assert layer(jnp.ones((2, 8), jnp.bfloat16)).dtype == jnp.bfloat16


def test_fresh_weights_have_the_scale_asked_for():
    weights = initial_weights((200, 100), 0.5, CONFIG, rngs=nnx.Rngs(0))
    # 20,000 draws: the standard deviation is known to about 0.5 %.
    assert float(weights[...].std()) == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize("param_dtype", ["bfloat16", "float64"])
def test_fresh_weights_are_the_same_in_every_dtype(param_dtype):
    reference = initial_weights((4, 4), 0.02, CONFIG, rngs=nnx.Rngs(0))[...]
    with jax.enable_x64(True):
        config = dataclasses.replace(CONFIG, param_dtype=param_dtype)
        weights = initial_weights((4, 4), 0.02, config, rngs=nnx.Rngs(0))[...]
        assert weights.dtype == param_dtype
        np.testing.assert_array_equal(weights, reference.astype(param_dtype))
