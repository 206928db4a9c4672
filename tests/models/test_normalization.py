"""LayerNorm and RMSNorm against their formulas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.config import GPTConfig
from models.normalization import LayerNorm, RMSNorm, build_norm

CONFIG = GPTConfig(
    vocab_size=16, max_sequence_length=8, num_layers=2, width=8, num_heads=2, use_bias=True
)


@pytest.fixture
def x():
    return 3 + 2 * jax.random.normal(jax.random.key(0), (2, 5, 8))


def test_layer_norm(x):
    norm = LayerNorm(CONFIG)
    assert norm.bias is not None
    norm.scale[...], norm.bias[...] = jnp.arange(8.0), jnp.ones(8)
    y = np.asarray(x)
    centred = y - y.mean(-1, keepdims=True)
    expected = centred / np.sqrt(y.var(-1, keepdims=True) + 1e-5) * np.arange(8.0) + 1
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-5)


def test_layer_norm_without_bias_has_no_shift(x):
    norm = LayerNorm(dataclasses.replace(CONFIG, use_bias=False))
    assert norm.bias is None
    np.testing.assert_allclose(norm(x).mean(-1), np.zeros((2, 5)), atol=1e-6)


def test_rms_norm(x):
    norm = RMSNorm(CONFIG)
    norm.scale[...] = jnp.arange(8.0)
    y = np.asarray(x)
    expected = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * np.arange(8.0)
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_statistics_of_16_bit_inputs_are_taken_in_float32(kind):
    norm = kind(dataclasses.replace(CONFIG, width=1024))
    # A sum of 1024 bfloat16 numbers near 1 would stall at 256.
    x = jnp.asarray(1 + jax.random.uniform(jax.random.key(0), (1, 1024)), jnp.bfloat16)
    y = norm(x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        y.astype(jnp.float32), norm(x.astype(jnp.float32)), rtol=0.01, atol=0.01
    )


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_a_token_of_zeros_stays_finite(kind):
    assert bool((kind(CONFIG)(jnp.zeros((1, 8))) == 0).all())


def test_the_configuration_chooses():
    assert isinstance(build_norm(dataclasses.replace(CONFIG, norm="layernorm")), LayerNorm)
    assert isinstance(build_norm(dataclasses.replace(CONFIG, norm="rmsnorm")), RMSNorm)
