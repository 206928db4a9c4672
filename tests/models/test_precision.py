"""Sums are taken in float32 or better."""

import jax
import pytest

from models.precision import at_least_float32


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_short_dtypes_are_widened(dtype, expected):
    with jax.enable_x64(True):
        assert at_least_float32(dtype) == expected
