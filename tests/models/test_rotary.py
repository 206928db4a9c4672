"""Rotary positions turn vectors, and only distances count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.rotary import rotary_angles, rotate


def turned(x, positions, dtype="float32"):
    positions = jnp.asarray(positions, jnp.int32)[None]
    angles = rotary_angles(positions, head_width=x.shape[-1], base=100.0, dtype=dtype)
    return rotate(x, angles)


def test_products_depend_on_distance_alone():
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def product(query_position, key_position):
        q, k = turned(query, [query_position]), turned(key, [key_position])
        return float((q * k).sum())

    assert product(7, 4) == pytest.approx(product(103, 100), abs=1e-4)
    assert product(7, 4) != pytest.approx(product(8, 4), abs=1e-2)


def test_length_is_kept_and_position_zero_does_nothing():
    x = jax.random.normal(jax.random.key(0), (2, 3, 2, 8))
    y = turned(x, [0, 5, 9])
    np.testing.assert_array_equal(y[:, 0], x[:, 0])
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_the_angles_are_those_of_the_paper():
    angles = rotary_angles(jnp.asarray([[3]]), head_width=6, base=100.0, dtype="float32")
    np.testing.assert_allclose(angles[0, 0, 0], 3 * 100.0 ** (-np.arange(0, 6, 2) / 6), rtol=1e-6)


def test_a_pair_is_a_complex_number():
    x = jax.random.normal(jax.random.key(0), (1, 2, 1, 4))
    angles = rotary_angles(jnp.asarray([[1, 2]]), head_width=4, base=100.0, dtype="float32")
    pairs = np.asarray(x[..., :2]) + 1j * np.asarray(x[..., 2:])
    expected = pairs * np.exp(1j * np.asarray(angles))
    y = np.asarray(rotate(x, angles))
    np.testing.assert_allclose(y[..., :2] + 1j * y[..., 2:], expected, rtol=1e-5, atol=1e-6)


def test_angles_of_16_bit_models_are_float32():
    x = jnp.ones((1, 1, 1, 4), jnp.bfloat16)
    # 1001 is no bfloat16 number: position 1000 would turn as far.
    assert turned(x, [1001], "bfloat16").dtype == jnp.bfloat16
    expected = turned(x.astype(jnp.float32), [1001]).astype(jnp.bfloat16)
    np.testing.assert_array_equal(turned(x, [1001], "bfloat16"), expected)


def test_angles_of_float64_models_are_float64():
    with jax.enable_x64(True):
        positions = jnp.asarray([[12345]], jnp.int32)
        angles = rotary_angles(positions, head_width=6, base=100.0, dtype="float64")
        assert angles.dtype == jnp.float64
        expected = 12345 * 100.0 ** (-np.arange(0, 6, 2) / 6)
        np.testing.assert_allclose(angles[0, 0, 0], expected, rtol=1e-14)
