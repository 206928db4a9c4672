"""The loss of a language model."""

import jax
import optax


def token_loss(logits: jax.Array, *, targets: jax.Array) -> jax.Array:
    """Cross entropy of every token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)
