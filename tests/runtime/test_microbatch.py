"""Cutting batches of any size, and refusing what is no batch."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.microbatch import check_batch, cut


@pytest.mark.parametrize("shard", [0, 2])
@pytest.mark.parametrize(
    ("num_examples", "num_microbatches"), [(1, 1), (1, 4), (8, 4), (10, 4), (9, 4), (5, 8), (7, 1)]
)
def test_every_example_is_valid_exactly_once(num_examples, num_microbatches, shard):
    ids_given = np.arange(num_examples, dtype=np.int32) + shard * num_examples
    batch = {"ids": jnp.asarray(ids_given), "none": None}
    micro = cut(batch, num_microbatches, shard)
    assert micro.examples.shape[0] == num_microbatches
    valid = np.asarray(micro.valid)
    ids = np.asarray(micro.examples)
    assert list(ids[valid]) == list(ids_given)
    # A row and its id belong together, fillers included.
    np.testing.assert_array_equal(micro.batch["ids"], ids)
    assert set(ids[~valid]) <= {ids_given[-1]}


def test_the_picture_in_the_docstring():
    micro = cut({"x": jnp.arange(10)}, 4)
    np.testing.assert_array_equal(micro.batch["x"], [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 9, 9]])
    np.testing.assert_array_equal(micro.valid[3], [True, False, False])


def test_check_batch_counts_the_examples():
    assert check_batch({"x": np.ones((6, 2)), "y": (np.ones(6), None)}, 3) == 6


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({}, ValueError, "the batch has no arrays: found {}; pass a dict of arrays"),
        (
            {"x": 3},
            TypeError,
            "batch['x'] must be an array [batch_size, ...]; found int. Values that are the same "
            "for all examples belong into the model or the loss.",
        ),
        (
            {"x": np.float32(3)},
            ValueError,
            "batch['x'] must have the examples as its first dim; found a scalar. Repeat it",
        ),
        (
            {"x": np.ones(3), "y": [np.ones((4, 2))]},
            ValueError,
            "all arrays of a batch must hold equally many examples; found batch['x']: 3, "
            "batch['y'][0]: 4",
        ),
        ({"x": np.ones((0, 2))}, ValueError, "the batch is empty: it must hold at least one"),
        (
            {"x": np.ones(7)},
            ValueError,
            "a batch of 7 examples can't be split over the 2 replicas of the mesh axis 'data': use "
            "6 or 8 examples (fill up with weight 0), or another size of that axis",
        ),
        ({"x": np.ones(1)}, ValueError, "use 2 examples (fill up with weight 0)"),
    ],
    ids=["no arrays", "number", "scalar", "sizes", "empty", "indivisible", "too few"],
)
def test_what_is_no_batch(batch, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check_batch(batch, 2)
