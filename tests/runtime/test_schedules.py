"""Contract 1 for every schedule that the loop runs: one row each."""

import jax
import pytest

from jaxpipe.runtime import FunctionalPipeline, engine, make_mesh
from jaxpipe.schedule import fill_weights, make_schedule, one_f_one_b, split_backward
from jaxpipe.schedule.schedule import Schedule
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit
from tests.runtime.reference import key_of, reference
from tests.runtime.toy import toy_batch, toy_model, toy_params

NUM_LAYERS, NUM_EXAMPLES = 9, 22

SCHEDULES: dict[str, Schedule] = {
    "eager_1f1b": make_schedule("eager_1f1b", 4, 8),
    "interleaved_1f1b": make_schedule("interleaved_1f1b", 4, 8, num_chunks=2),
    "interleaved_1f1b, 3 chunks": make_schedule("interleaved_1f1b", 2, 5, num_chunks=3),
    "looped_bfs": make_schedule("looped_bfs", 4, 6, num_chunks=2),
    "group_interleaved": make_schedule("group_interleaved", 4, 8, num_chunks=2),
    "zb_h1": make_schedule("zb_h1", 4, 8),
    "zb_h1, few microbatches": make_schedule("zb_h1", 4, 2),
    "zb_h1, one device": make_schedule("zb_h1", 1, 3),
    "zb_h2": make_schedule("zb_h2", 4, 8),
    "zb2p": make_schedule("zb2p", 3, 5),
    "zb1p5": make_schedule("zb1p5", 3, 5),
    "interleaved_zb": make_schedule("interleaved_zb", 4, 8, num_chunks=2),
    "1f1b, split": split_backward(one_f_one_b(2, 4)),
    "gpipe, filled": fill_weights(make_schedule("gpipe", 4, 8)),
}


@pytest.mark.parametrize("remat", ["selective", "full"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_gradient_is_that_of_the_plain_program(float64, name, remat):
    schedule = SCHEDULES[name]
    pipeline = FunctionalPipeline(
        toy_model(NUM_LAYERS),
        mesh=make_mesh(schedule.num_devices, 2),
        num_microbatches=schedule.num_microbatches,
        schedule=schedule,
        remat=remat,
    )
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS))
    batch, key = toy_batch(NUM_EXAMPLES), key_of(0)
    step = quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes))
    means, grads = step(pipeline.table, params, batch, key)
    expected_means, expected_grads = reference(NUM_LAYERS, NUM_EXAMPLES, 0)
    assert_close(means.loss, expected_means.loss, FLOAT64)
    assert_close(pipeline.from_pipeline(grads), expected_grads, FLOAT64)


def test_zero_bubble_orders_share_their_step(float64):
    """Orders with the same kinds of actions run in one executable when the sizes suffice."""
    pipeline = FunctionalPipeline(
        toy_model(4), mesh=make_mesh(4), num_microbatches=8, schedule=make_schedule("zb_h2", 4, 8)
    )
    params, batch = pipeline.to_pipeline(toy_params(4)), toy_batch(8)
    other = pipeline.with_schedule("zb_h1")
    assert other.sizes == pipeline.sizes
    step = quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes))
    _, first = step(pipeline.table, params, batch, None)
    _, second = step(other.table, params, batch, None)
    assert_close(second, first, FLOAT64)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_poisoned_slots_of_a_split_backward_change_nothing(float64, remat):
    pipeline = FunctionalPipeline(
        toy_model(6), mesh=make_mesh(4), num_microbatches=5, schedule="zb_h1", remat=remat
    )
    operands = (pipeline.table, pipeline.to_pipeline(toy_params(6)), toy_batch(10), None)
    clean = quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes))(*operands)
    poisoned = quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes, poison=True))(
        *operands
    )
    same = jax.tree.map(lambda one, other: bool((one == other).all()), clean, poisoned)
    assert jax.tree.all(same)
