"""The functional front door: what it refuses, and what is compiled when."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxpipe.runtime import FunctionalPipeline, Params, make_mesh
from jaxpipe.schedule import make_schedule
from tests.runtime.as_users_call import unchecked
from tests.runtime.closeness import FLOAT32, FLOAT64, assert_close
from tests.runtime.compilations import compilations
from tests.runtime.reference import reference
from tests.runtime.toy import toy_batch, toy_model, toy_params

NUM_LAYERS = 5


def make_pipeline(num_stages: int = 2, **options: Any) -> FunctionalPipeline:
    options = {"num_microbatches": 3, **options}
    return FunctionalPipeline(
        options.pop("model", toy_model(NUM_LAYERS)), mesh=make_mesh(num_stages), **options
    )


def test_nothing_compiles_after_the_first_step():
    pipeline = make_pipeline()
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    batches = [toy_batch(6, "float32", seed) for seed in range(4)]
    (_, _), grads = pipeline.value_and_grad(params, batches[0])
    again = grads
    with compilations() as found:
        for batch in batches[1:]:
            (loss, _), again = pipeline.value_and_grad(params, batch)
            float(loss)
            # Gradients come in the layout and sharding of the parameters.
            pipeline.value_and_grad(grads, batch)
    assert found == []
    assert jax.tree.map(lambda leaf: leaf.sharding, again) == jax.tree.map(
        lambda leaf: leaf.sharding, grads
    )
    with compilations() as found:
        pipeline.value_and_grad(params, toy_batch(7, "float32"))
    assert found != []  # the counter counts


def test_another_schedule_of_the_same_sizes_shares_the_executable():
    pipeline = make_pipeline(schedule="gpipe")
    both = pipeline.with_schedule("1f1b")
    params, batch = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32")), toy_batch(6, "float32")
    (_, _), expected = both.value_and_grad(params, batch)
    back = both.with_schedule("gpipe")
    assert back.program.schedule.name == "gpipe"
    assert back.table is not both.table
    with compilations() as found:
        (_, _), grads = back.value_and_grad(params, batch)
    assert found == []
    assert_close(grads, expected, FLOAT32)


def test_a_bad_argument_is_refused_before_anything_compiles():
    pipeline = make_pipeline(num_microbatches=4)
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    with compilations() as found, pytest.raises(ValueError, match="the batch is empty"):
        pipeline.value_and_grad(params, {"x": np.ones((0, 2))})
    assert found == []


@pytest.mark.parametrize("name", ["interleaved_1f1b", "looped_bfs", "eager_1f1b"])
def test_schedules_of_any_name_that_the_loop_can_run(float64, name):
    """Schedules with chunks, and such as need more slots."""
    pipeline = FunctionalPipeline(
        toy_model(9), mesh=make_mesh(4), num_microbatches=5, schedule=name
    )
    params = pipeline.to_pipeline(toy_params(9))
    (loss, _), grads = pipeline.value_and_grad(params, toy_batch(10))
    means, expected = reference(9, 10, None)
    assert_close(pipeline.from_pipeline(grads), expected, FLOAT64)
    assert_close(loss, means.loss, FLOAT64)


def test_a_schedule_of_ones_own_and_layers_of_ones_own(float64):
    pipeline = FunctionalPipeline(
        toy_model(9),
        mesh=make_mesh(2),
        num_microbatches=3,
        schedule=make_schedule("gpipe", 2, 3),
        layers_per_stage=(2, 7),
    )
    params = pipeline.to_pipeline(toy_params(9))
    (_, _), grads = pipeline.value_and_grad(params, toy_batch(10))
    assert_close(pipeline.from_pipeline(grads), reference(9, 10, None)[1], FLOAT64)


def test_a_policy_of_ones_own(float64):
    policy = jax.checkpoint_policies.nothing_saveable
    pipeline = FunctionalPipeline(toy_model(9), mesh=make_mesh(2), num_microbatches=3, remat=policy)
    params = pipeline.to_pipeline(toy_params(9))
    (_, _), grads = pipeline.value_and_grad(params, toy_batch(10))
    assert_close(pipeline.from_pipeline(grads), reference(9, 10, None)[1], FLOAT64)


def test_the_reference_and_the_pipeline_agree_in_their_own_words(float64):
    """`plain_value_and_grad` returns what `value_and_grad` must."""
    pipeline = FunctionalPipeline(toy_model(9), mesh=make_mesh(2), num_microbatches=3)
    params, batch = pipeline.to_pipeline(toy_params(9)), toy_batch(10)
    (loss, means), grads = pipeline.value_and_grad(params, batch)
    (plain_loss, plain_means), plain_grads = pipeline.plain_value_and_grad(params, batch)
    assert_close(grads, plain_grads, FLOAT64)
    assert_close((loss, means.metrics), (plain_loss, plain_means.metrics), FLOAT64)
    value, _ = pipeline.evaluate(params, batch)
    assert_close(value, plain_loss, FLOAT64)


def test_gradients_accumulate_over_calls_as_sums(float64):
    """Two half batches, weighed by their weights, are one batch: nothing is scaled twice."""
    pipeline = FunctionalPipeline(toy_model(9), mesh=make_mesh(2), num_microbatches=3)
    params, batch = pipeline.to_pipeline(toy_params(9)), toy_batch(10)
    halves = [
        jax.tree.map(lambda leaf, part=part: leaf[part], batch)
        for part in (slice(0, 4), slice(4, 10))
    ]
    results = [pipeline.value_and_grad(params, half) for half in halves]
    weight = sum(means.weight for (_, means), _ in results)
    total = jax.tree.map(
        lambda first, second: (
            (first * results[0][0][1].weight + second * results[1][0][1].weight) / weight
        ),
        results[0][1],
        results[1][1],
    )
    assert_close(pipeline.from_pipeline(total), reference(9, 10, None)[1], FLOAT64)


def test_bfloat16_computation_accumulates_in_the_parameters_dtype():
    pipeline = make_pipeline(compute_dtype="bfloat16")
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    batch = toy_batch(6, "float32")
    (loss, _), grads = pipeline.value_and_grad(params, batch)
    (plain_loss, _), plain_grads = pipeline.plain_value_and_grad(params, batch)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(grads)} == {"float32"}
    assert loss.dtype == plain_loss.dtype == jnp.float32
    # bfloat16 has 8 bits: the order of sums shows.
    assert_close(grads, plain_grads, 0.05)


def test_to_pipeline_moves_params_within_any_tree():
    pipeline = make_pipeline()
    params = toy_params(NUM_LAYERS, "float32")
    tree = {"params": params, "state": (params, jnp.zeros(()), None)}
    moved = pipeline.to_pipeline(tree)
    assert moved["state"][0].blocks["scale"].shape == (2, 1, 3)
    back = pipeline.from_pipeline(moved)
    jax.tree.map(np.testing.assert_array_equal, back, tree)


def bad_model(**parts: Callable) -> Any:
    return dataclasses.replace(toy_model(NUM_LAYERS), **parts)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"num_stages": 6},
            ValueError,
            "every stage needs at least one layer: found 5 layers for 6 stages; use a mesh with at "
            "most 5 devices along 'pipe', a deeper model, or say in layers_per_stage which stages "
            "have none",
        ),
        ({"num_microbatches": 0}, ValueError, "num_microbatches must be at least 1, but is 0"),
        (
            {"schedule": "1f1"},
            ValueError,
            "there is no schedule '1f1'; did you mean '1f1b'?",
        ),
        (
            {"schedule": make_schedule("1f1b", 4, 8)},
            ValueError,
            "schedule '1f1b' is for 4 devices and 8 microbatches, but the mesh has pipe=2 and "
            "num_microbatches=3; make the schedule for these sizes",
        ),
        (
            {"layers_per_stage": [5, 1]},
            ValueError,
            "layers_per_stage must hold 2 numbers, none negative, that add up to 5; found [5, 1]",
        ),
    ],
    ids=["stages", "microbatches", "schedule", "sizes", "layers"],
)
def test_options_that_do_not_fit(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make_pipeline(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_microbatches": 2.0}, "num_microbatches must be an integer, but is 2.0"),
        (
            {"schedule": 3},
            "schedule must be a name such as '1f1b' or a jaxpipe.schedule.Schedule; found 3",
        ),
        ({"mesh": None}, "mesh must be a jax.sharding.Mesh"),
    ],
    ids=["microbatches", "schedule", "mesh"],
)
def test_options_of_a_wrong_type(options, message, monkeypatch):
    from jaxpipe.runtime import pipeline as module

    for name in ("_lower", "check_mesh"):
        monkeypatch.setattr(module, name, unchecked(getattr(module, name)))
    pipeline = object.__new__(FunctionalPipeline)
    options = {"mesh": make_mesh(2), "num_microbatches": 3, **options}
    with pytest.raises(TypeError, match=re.escape(message)):
        unchecked(FunctionalPipeline.__init__)(pipeline, toy_model(NUM_LAYERS), **options)


def test_a_mesh_without_pipe():
    mesh = jax.make_mesh((2,), ("stages",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    with pytest.raises(ValueError, match="the mesh must have an axis named 'pipe'"):
        FunctionalPipeline(toy_model(NUM_LAYERS), mesh=mesh, num_microbatches=3)


def test_parameters_in_layer_order():
    pipeline = make_pipeline()
    message = (
        "block parameters must be in this pipeline's layout, [devices, chunks, layers, ...] = "
        "[2, 1, 3, Ellipsis]; found ['down'] [5, 8, 4]"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        pipeline.value_and_grad(toy_params(NUM_LAYERS, "float32"), toy_batch(6, "float32"))


def test_parameters_of_another_type():
    pipeline = make_pipeline()
    message = "params must be jaxpipe.Params in pipeline layout, such as pipeline.params(model)"
    with pytest.raises(TypeError, match=re.escape(message)):
        unchecked(FunctionalPipeline._check)(pipeline, {"w": 1}, toy_batch(6, "float32"), None)


def test_another_placement():
    message = (
        "schedule 'interleaved_1f1b' has 4 stages on devices ((0, 1, 0, 1),), but the parameters "
        "lie on ((0, 1),); make a new pipeline for it"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        make_pipeline().with_schedule(make_schedule("interleaved_1f1b", 2, 3, num_chunks=2))


def run_with(**parts: Callable) -> None:
    pipeline = make_pipeline(model=bad_model(**parts))
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    pipeline.value_and_grad(params, toy_batch(6, "float32"))


def test_a_block_that_changes_the_dtype_of_its_input():
    message = (
        "a block must keep the shapes and dtypes of its input, since the next stage takes it "
        "again: x['h'] float32[2, 3, 4] becomes bfloat16[2, 3, 4]. Cast to the block's dtype in "
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        run_with(block=lambda params, x, *_: {**x, "h": x["h"].astype("bfloat16")})


def test_a_block_that_changes_the_structure_of_its_input():
    with pytest.raises(ValueError, match="a block must return what it takes"):
        run_with(block=lambda params, x, *_: x["h"])


def test_the_forward_alone_checks_the_blocks_too():
    model = bad_model(block=lambda params, x, *_: x["h"])
    pipeline = make_pipeline(model=model)
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    with pytest.raises(ValueError, match="a block must return what it takes"):
        pipeline.forward(params, toy_batch(6, "float32"))


def test_params_know_their_shardings():
    pipeline = make_pipeline()
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    assert isinstance(pipeline.shardings, Params)
    assert params.blocks["up"].sharding.spec[0] == "pipe"
    assert params.outer["table"].sharding.is_fully_replicated
