"""Layers on devices, and back."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.runtime.layout import Layout, split_layers
from jaxpipe.schedule import loop_placement, v_placement


def make_layout(num_devices: int, num_chunks: int, is_v: bool, seed: int) -> Layout:
    placement = (v_placement if is_v else loop_placement)(num_devices, num_chunks)
    layers = np.random.default_rng(seed).integers(1, 4, placement.num_stages)
    return Layout(placement, tuple(map(int, layers)), num_devices)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_v", [False, True], ids=["loop", "v"])
@pytest.mark.parametrize(("num_devices", "num_chunks"), [(1, 1), (3, 1), (1, 3), (4, 2), (2, 3)])
def test_there_and_back_is_the_identity(num_devices, num_chunks, is_v, seed):
    layout = make_layout(num_devices, num_chunks, is_v, seed)
    numbers = np.arange(1.0, layout.num_layers + 1, dtype=np.float32)
    blocks = {"a": jnp.asarray(numbers), "b": jnp.asarray(numbers[:, None] * np.ones((1, 2), "f"))}
    placed = layout.to_pipeline(blocks)
    for leaf in jax.tree.leaves(placed):
        assert leaf.shape[:3] == layout.layer_at.shape
        # Room that is left over holds zeros.
        assert (np.asarray(leaf)[layout.layer_at < 0] == 0).all()
    back = layout.from_pipeline(placed)
    for ours, theirs in zip(jax.tree.leaves(back), jax.tree.leaves(blocks), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_each_layer_lies_where_the_placement_says(num_devices, num_chunks, is_v, seed):
    layout = make_layout(num_devices, num_chunks, is_v, seed)
    (path,) = layout.placement.paths
    for stage, device in enumerate(path):
        first, count = layout.first_layers[stage], layout.layers_per_stage[stage]
        here = layout.layer_at[device, layout.placement.chunk(stage)]
        assert list(here[:count]) == list(range(first, first + count))
        assert (here[count:] == -1).all()


def test_nan_in_layer_0_does_not_leak_into_the_room_left_over():
    layout = Layout(loop_placement(2), (2, 1), 2)
    placed = layout.to_pipeline(jnp.array([jnp.nan, 1.0, 2.0]))
    assert float(placed[1, 0, 1]) == 0


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "counts"),
    [
        (30, 4, (8, 8, 7, 7)),
        (9, 4, (3, 2, 2, 2)),
        (5, 4, (2, 1, 1, 1)),
        (4, 4, (1, 1, 1, 1)),
        (8, 1, (8,)),
    ],
)
def test_layers_are_shared_out_evenly(num_layers, num_stages, counts):
    assert split_layers(num_layers, num_stages) == counts


def test_as_the_user_says():
    assert split_layers(6, 3, [1, 4, 1]) == (1, 4, 1)
    assert split_layers(2, 4, [0, 1, 1, 0]) == (0, 1, 1, 0)


@pytest.mark.parametrize(
    ("layers_per_stage", "found"),
    [
        ([3, 3, 1], "found [3, 3, 1], which add up to 7"),
        ([3, 3], "found [3, 3], which add up to 6"),
        ([7, 0, -1], "found [7, 0, -1], which add up to 6"),
    ],
)
def test_numbers_that_do_not_fit(layers_per_stage, found):
    message = (
        "layers_per_stage must hold 3 numbers, none negative, that add up to 6; "
        f"{found}; [2, 2, 2] would do"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        split_layers(6, 3, layers_per_stage)


def test_more_stages_than_layers():
    message = (
        "every stage needs at least one layer: found 3 layers for 4 stages; use a mesh with at "
        "most 3 devices along 'pipe', a deeper model, or say in layers_per_stage which stages have "
        "none"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        split_layers(3, 4)
