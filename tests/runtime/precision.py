"""A fixture for tests in float64."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    """64-bit JAX for one test."""
    with jax.enable_x64(True):
        yield
