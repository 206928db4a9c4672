"""Checkpoints are in layer order: what was saved from one layout loads into any other."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpipe import Params, Pipeline, make_mesh
from jaxpipe.checkpoint import CheckpointError, Checkpoints


class Model(nnx.Module):
    """Seven blocks, so that no number of stages above 1 divides them."""

    def __init__(self, *, width=4, rngs):
        self.embed = nnx.Linear(3, width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(7)])
        self.head = nnx.Linear(width, 1, rngs=rngs)


def build(num_stages, *, width=4, seed=0):
    model = Model(width=width, rngs=nnx.Rngs(seed))
    pipeline = Pipeline(
        model,
        lambda outputs, *, targets: (outputs - targets)[:, 0] ** 2,
        mesh=make_mesh(pipe=num_stages),
        num_microbatches=2,
        embed=lambda model, inputs: model.embed(inputs),
    )
    return pipeline, pipeline.params(model)


def state_of(params):
    """Parameters and an optimizer's state that differs from zero everywhere."""
    optimizer = optax.adam(1e-2)
    moments = optimizer.init(params)
    gradients = jax.tree.map(lambda leaf: leaf + 1, params)
    _, moments = optimizer.update(gradients, moments, params)
    return {"params": params, "optimizer": moments}


def assert_equal(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        other = dict(jax.tree_util.tree_leaves_with_path(wanted))[path]
        np.testing.assert_array_equal(leaf, other, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_a_state_saved_with_four_stages_loads_with_any_number(tmp_path, num_stages):
    saving, params = build(4)
    state = state_of(params)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state, pipeline=saving)
    loading, other = build(num_stages, seed=1)
    like = state_of(other)
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore(3, like, pipeline=loading)
    assert_equal(loading.from_pipeline(restored), saving.from_pipeline(state))
    for leaf, place in zip(jax.tree.leaves(restored), jax.tree.leaves(like), strict=True):
        assert leaf.sharding == place.sharding


def test_a_restored_state_is_the_saved_one_bit_for_bit_in_the_same_layout(tmp_path):
    pipeline, params = build(4)
    state = state_of(params)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state, pipeline=pipeline)
        restored = checkpoints.restore(3, state, pipeline=pipeline)
    # Only what is padding may differ: here the moments had been moved away from zero on purpose.
    assert_equal(pipeline.to_pipeline(pipeline.from_pipeline(state)), restored)
    assert_equal(restored["params"], params)


def test_the_plain_model_comes_back_from_a_checkpoint(tmp_path):
    pipeline, params = build(4, seed=5)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, params, pipeline=pipeline)
    other, blank = build(2)
    with Checkpoints(tmp_path) as checkpoints:
        model = other.to_plain(checkpoints.restore(1, blank, pipeline=other))
    wanted = nnx.to_pure_dict(nnx.state(Model(rngs=nnx.Rngs(5))))
    assert_equal(nnx.to_pure_dict(nnx.state(model)), wanted)


def test_paths_name_no_stage_and_no_class(tmp_path):
    pipeline, params = build(4)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"params": params}, pipeline=pipeline)
    with Checkpoints(tmp_path) as checkpoints:
        saved = checkpoints.shapes(1)
    assert saved == {
        "params/blocks/bias": "float32[7, 4]",
        "params/blocks/kernel": "float32[7, 4, 4]",
        "params/outer/embed/bias": "float32[4]",
        "params/outer/embed/kernel": "float32[3, 4]",
        "params/outer/head/bias": "float32[1]",
        "params/outer/head/kernel": "float32[4, 1]",
    }


def test_a_state_may_be_overwritten_as_soon_as_save_returns(tmp_path):
    pipeline, params = build(2)
    wanted = jax.tree.map(np.array, pipeline.from_pipeline(params))
    consume = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree), donate_argnums=0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, params, pipeline=pipeline)
        like = consume(params)
        restored = checkpoints.restore(1, like, pipeline=pipeline)
    assert_equal(pipeline.from_pipeline(restored), wanted)


def test_notes_come_back_and_only_the_latest_steps_are_kept(tmp_path):
    pipeline, params = build(2)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, params, pipeline=pipeline, notes={"seed": step, "text": "a"})
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [2, 3]
        assert checkpoints.notes(3) == {"seed": 3, "text": "a"}


def test_a_checkpoint_of_another_model_is_refused_with_every_difference(tmp_path):
    pipeline, params = build(2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"params": params, "more": jnp.ones(3)}, pipeline=pipeline)
    other, wider = build(2, width=5)
    like = {"params": wider, "count": jnp.ones((), jnp.int32)}
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError) as caught:
        checkpoints.restore(1, like, pipeline=other)
    message = str(caught.value)
    assert "is of another model or optimizer" in message
    assert "- count is missing" in message
    assert "- more has no place in it" in message
    assert "- params/blocks/kernel is float32[7, 4, 4], and float32[7, 5, 5] is wanted" in message
    assert "restore it with the settings it was saved with" in message


def test_a_step_that_is_not_there_is_refused(tmp_path):
    pipeline, params = build(2)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match="no checkpoint of step 7: there are none"):
            checkpoints.notes(7)
        checkpoints.save(1, params, pipeline=pipeline)
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match="no checkpoint of step 7: there are 1"),
    ):
        checkpoints.restore(7, params, pipeline=pipeline)


def test_what_a_crash_left_half_written_is_no_checkpoint(tmp_path):
    pipeline, params = build(2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, params, pipeline=pipeline)
    # Orbax writes under a temporary name and renames when all is there.
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "2.orbax-checkpoint-tmp" / "state").mkdir()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [1]


def test_an_abstract_state_is_enough_to_restore_into(tmp_path):
    pipeline, params = build(2)
    assert isinstance(params, Params)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, params, pipeline=pipeline)
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            params,
        )
        restored = checkpoints.restore(1, like, pipeline=pipeline)
    assert_equal(restored, params)
