"""Masks belong to tokens: cutting the batch or the sequence cuts the mask and changes no bit."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.dropout import Dropout, check_example_keys, keep_mask, part_keys

RATE = 0.25


@functools.partial(jax.jit, static_argnums=(0, 1))
def drop(rate: float, site: int, x: jax.Array, **options: Any) -> jax.Array:
    return Dropout(rate, site=site)(x, **options)


@functools.partial(jax.jit, static_argnums=0)
def drop_pairs(rate: float, probabilities: jax.Array, **options: Any) -> jax.Array:
    return Dropout(rate, site=1).pairs(probabilities, **options)


@pytest.fixture
def keys():
    return jax.random.split(jax.random.key(3), 4)


def positions_from(start: int, stop: int) -> jax.Array:
    return jnp.arange(start, stop, dtype=jnp.int32)[None]


def test_a_slice_of_the_batch_and_the_sequence_has_the_same_mask(keys):
    x = jax.random.normal(jax.random.key(0), (4, 10, 7))
    whole = drop(RATE, 2, x, keys=keys, positions=positions_from(0, 10))
    for examples in (slice(0, 1), slice(2, 4)):
        for start, stop in ((0, 4), (3, 10)):
            positions = positions_from(start, stop)
            part = drop(RATE, 2, x[examples, start:stop], keys=keys[examples], positions=positions)
            np.testing.assert_array_equal(part, whole[examples, start:stop])


def test_the_order_of_tokens_does_not_matter(keys):
    x = jax.random.normal(jax.random.key(0), (4, 10, 8))
    order = jax.random.permutation(jax.random.key(1), 10)
    whole = drop(RATE, 2, x, keys=keys, positions=positions_from(0, 10))
    shuffled = drop(RATE, 2, x[:, order], keys=keys, positions=order.astype(jnp.int32)[None])
    np.testing.assert_array_equal(shuffled, whole[:, order])


def test_compiled_and_vectorized_masks_are_the_eager_ones(keys):
    dropout = Dropout(RATE, site=0)
    x = jnp.ones((4, 6, 5))

    def drop_one(x, key):
        return dropout(x[None], keys=key[None], positions=positions_from(0, 6))[0]

    eager = dropout(x, keys=keys, positions=positions_from(0, 6))
    np.testing.assert_array_equal(jax.jit(jax.vmap(drop_one))(x, keys), eager)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_mask_is_the_same_in_every_dtype(keys, dtype):
    shape = (4, 6, 5)
    reference = drop(RATE, 0, jnp.ones(shape), keys=keys, positions=positions_from(0, 6)) > 0
    with jax.enable_x64(True):
        dropped = drop(RATE, 0, jnp.ones(shape, dtype), keys=keys, positions=positions_from(0, 6))
        assert dropped.dtype == dtype
        np.testing.assert_array_equal(dropped > 0, reference)


def test_examples_positions_sites_and_features_differ(keys):
    ones = jnp.ones((4, 8, 64))
    first = drop(0.5, 0, ones, keys=keys, positions=positions_from(0, 8)) > 0
    second = drop(0.5, 1, ones, keys=keys, positions=positions_from(0, 8)) > 0
    tokens = np.concatenate([first.reshape(-1, 64), second.reshape(-1, 64)])
    assert len(np.unique(tokens, axis=0)) == len(tokens)
    assert len(np.unique(tokens, axis=1).T) == 64


def test_the_rate_and_the_mean_are_right(keys):
    ones = jnp.ones((4, 100, 250))
    dropped = drop(RATE, 0, ones, keys=keys, positions=positions_from(0, 100))
    share = float((dropped == 0).mean())
    # 100,000 draws: six standard deviations are 0.0082.
    assert share == pytest.approx(RATE, abs=0.0082)
    np.testing.assert_allclose(dropped[dropped > 0], 1 / (1 - RATE))


def test_a_rate_close_to_one_keeps_numbers_finite(keys):
    dropped = drop(0.999999, 0, jnp.ones((4, 2, 3)), keys=keys, positions=positions_from(0, 2))
    assert bool(jnp.isfinite(dropped).all())


@pytest.mark.parametrize(("rate", "with_keys"), [(0.0, True), (RATE, False)], ids=str)
def test_nothing_happens_without_keys_or_rate(keys, rate, with_keys):
    dropout = Dropout(rate, site=0)
    given = keys if with_keys else None
    x = jnp.ones((4, 2, 3))
    assert not dropout.is_active(given)
    assert dropout(x, keys=given, positions=positions_from(0, 2)) is x
    pairs = jnp.ones((4, 1, 2, 2))
    positions = positions_from(0, 2)
    same = dropout.pairs(pairs, keys=given, query_positions=positions, key_positions=positions)
    assert same is pairs


@pytest.mark.parametrize(
    ("queries", "seen"),
    [((0, 3), (0, 3)), ((3, 9), (0, 9)), ((4, 5), (2, 7))],
    ids=["prefix", "suffix", "window"],
)
def test_pairs_of_tokens_keep_their_mask_when_queries_or_keys_are_cut(keys, queries, seen):
    def drop_range(examples, query_range, key_range):
        shape = (4, 3, query_range[1] - query_range[0], key_range[1] - key_range[0])
        return drop_pairs(
            0.5,
            jnp.ones(shape)[examples],
            keys=keys[examples],
            query_positions=positions_from(*query_range),
            key_positions=positions_from(*key_range),
        )

    whole = drop_range(slice(None), (0, 9), (0, 9))
    part = drop_range(slice(1, 3), queries, seen)
    np.testing.assert_array_equal(part, whole[1:3, :, slice(*queries), slice(*seen)])
    assert not np.array_equal(whole[:, 0], whole[:, 1]), "heads differ"
    assert not np.array_equal(whole, np.swapaxes(whole, 2, 3)), "a pair has an order"


def test_keep_mask_takes_keys_of_any_shape(keys):
    single = keep_mask(keys[0], 0.5, 9)
    table = keep_mask(keys.reshape(2, 2), 0.5, 9)
    assert (single.shape, table.shape) == ((9,), (2, 2, 9))
    np.testing.assert_array_equal(table[0, 0], single)


def test_part_keys_fold_in_the_part(keys):
    folded = part_keys(keys, 5)
    assert folded is not None
    for key, expected in zip(folded, keys, strict=True):
        assert jax.random.key_data(key).tolist() == (
            jax.random.key_data(jax.random.fold_in(expected, 5)).tolist()
        )
    assert part_keys(None, 5) is None


def test_raw_keys_are_refused():
    with pytest.raises(TypeError, match="keys must be typed PRNG keys, one per example, but their"):
        check_example_keys(jnp.zeros((4, 2), jnp.uint32))


def test_one_key_for_all_examples_is_refused():
    with pytest.raises(ValueError, match=r"one per example, \[batch\], but their shape is \(\)"):
        check_example_keys(jax.random.key(0))


@pytest.mark.parametrize("generator", ["rbg", "unsafe_rbg"])
def test_generators_that_look_at_their_neighbours_are_refused(generator):
    keys = jax.random.split(jax.random.key(0, impl=generator), 2)
    with pytest.raises(ValueError, match="give a token other bits when its neighbours change"):
        check_example_keys(keys)
