"""What a part's signature asks for."""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.nn.by_name import call_by_name

BATCH = {"tokens": jnp.arange(3), "weights": jnp.ones(3)}
KEYS = jax.random.split(jax.random.key(0), 3)


def test_entries_by_name_and_nothing_else():
    def part(x, *, weights, other=5):
        return x, weights, other

    assert call_by_name(part, "part", (1,), BATCH) == (1, BATCH["weights"], 5)


def test_the_whole_batch_and_the_keys():
    def part(x, batch, keys=None):
        return batch, keys

    assert call_by_name(part, "part", (1,), BATCH, KEYS) == (BATCH, KEYS)
    assert call_by_name(part, "part", (1,), BATCH) == (BATCH, None)


def test_keys_that_a_part_insists_on_may_be_none():
    def part(x, keys):
        return keys

    assert call_by_name(part, "part", (1,), BATCH) is None


def test_a_batch_without_names():
    batch = (jnp.arange(3),)
    assert call_by_name(lambda batch: batch, "part", (), batch) is batch


def test_an_input_may_be_called_like_an_entry():
    """The input is passed first; its name says nothing."""
    assert call_by_name(lambda tokens, weights: tokens, "part", (7,), BATCH) == 7


@pytest.mark.parametrize(
    ("batch", "has"),
    [(BATCH, "'tokens', 'weights'"), ((1,), "no named entries: it is a tuple")],
    ids=["dict", "tuple"],
)
def test_what_the_batch_lacks(batch, has):
    message = (
        f"head requires 'targets', 'mask', but the batch has {has}. Rename the entry, give the "
        "argument a default, or pass a function as head= that takes what is there"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        call_by_name(lambda x, targets, mask, other=1: x, "head", (1,), batch)
