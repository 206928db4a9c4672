"""Our own layers promote no dtype silently, and the shapes in their signatures hold."""

from collections.abc import Iterator

import jax
import jaxtyping
import pytest

# The configuration checks its own fields, with messages that the type checker would preempt.
MODULES = ("attention", "dropout", "gpt", "linear", "mlp", "normalization", "precision", "rotary")
jaxtyping.install_import_hook([f"models.{name}" for name in MODULES], "beartype.beartype")


@pytest.fixture(autouse=True)
def strict_promotion() -> Iterator[None]:
    """Makes implicit dtype promotion an error."""
    with jax.numpy_dtype_promotion("strict"):
        yield
