"""The MLP against its formulas."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

from models.config import GPTConfig
from models.mlp import MLP

CONFIG = GPTConfig(
    vocab_size=16, max_sequence_length=8, num_layers=8, width=8, num_heads=2, mlp_width=12
)


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (2, 3, 8))


def test_swiglu(x):
    mlp = MLP(CONFIG, rngs=nnx.Rngs(0))
    assert mlp.gate is not None
    gate, up, down = (np.asarray(layer.kernel[...]) for layer in (mlp.gate, mlp.up, mlp.down))
    opened = x @ gate
    expected = (opened / (1 + np.exp(-opened)) * (x @ up)) @ down
    np.testing.assert_allclose(mlp(x), expected, rtol=1e-4, atol=1e-8)


def test_gelu(x):
    mlp = MLP(dataclasses.replace(CONFIG, activation="gelu"), rngs=nnx.Rngs(0))
    assert mlp.gate is None
    # Weights of 0.02 would only see the straight part of the curve.
    mlp.up.kernel[...] = 50 * mlp.up.kernel[...]
    hidden = np.asarray(x @ mlp.up.kernel[...])
    exact = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
    # The tanh form is within 5e-4 of the exact curve.
    expected = exact @ np.asarray(mlp.down.kernel[...])
    np.testing.assert_allclose(mlp(x), expected, atol=12 * 5e-4 * 0.02)


def test_the_projection_into_the_residual_stream_starts_smaller():
    config = dataclasses.replace(CONFIG, width=64, mlp_width=200)
    mlp = MLP(config, rngs=nnx.Rngs(0))
    assert float(mlp.up.kernel[...].std()) == pytest.approx(0.02, rel=0.05)
    assert float(mlp.down.kernel[...].std()) == pytest.approx(0.02 / 4, rel=0.05)
