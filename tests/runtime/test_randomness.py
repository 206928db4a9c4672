"""Keys by step, example and part."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.randomness import EMBED, check_step_key, example_keys, part_keys
from tests.runtime.as_users_call import unchecked


def bits(keys: jax.Array | None) -> np.ndarray:
    assert keys is not None
    return np.asarray(jax.random.key_data(keys))


def test_an_example_has_the_same_key_however_the_batch_is_cut():
    key = jax.random.key(0)
    whole = bits(example_keys(key, jnp.arange(6)))
    cut = bits(example_keys(key, jnp.arange(6).reshape(3, 2)))
    np.testing.assert_array_equal(whole, cut.reshape(whole.shape))
    assert len(np.unique(whole, axis=0)) == 6


def test_parts_of_one_example_have_different_keys():
    keys = example_keys(jax.random.key(0), jnp.arange(2))
    parts = [bits(part_keys(keys, part)) for part in range(EMBED, EMBED + 5)]
    assert len(np.unique(np.concatenate(parts), axis=0)) == 10


def test_without_a_key_there_are_none():
    assert part_keys(None, EMBED) is None
    check_step_key(None)
    check_step_key(jax.random.key(0))


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (
            7,
            TypeError,
            "key must be one typed PRNG key such as jax.random.key(0), or None for a step without "
            "randomness; found int. jax.random.wrap_key_data makes one of an old uint32 key.",
        ),
        (np.zeros(2, np.uint32), TypeError, "found ndarray."),
        (jnp.zeros(2, "uint32"), TypeError, "of dtype uint32"),
        (
            lambda: jax.random.split(jax.random.key(0), 2),
            ValueError,
            "key must be one key for the whole step; found an array of shape (2,): pass key[0]",
        ),
    ],
    ids=["number", "numpy", "old key", "many"],
)
def test_what_is_no_key(key, error, message):
    with pytest.raises(error, match=re.escape(message)):
        unchecked(check_step_key)(key() if callable(key) else key)
