"""Whatever runs through a pipeline equals the unpipelined program.

The full product of schedules, meshes, microbatches and recomputation, on a toy with ragged batches,
masked tokens, tied weights and stages of unequal length.
"""

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpipe.lower import TableSizes, encode, lower
from jaxpipe.runtime import FunctionalPipeline, LossMeans, Params, engine, make_mesh
from jaxpipe.schedule import Action, Kind, Schedule, gpipe
from tests.runtime.closeness import FLOAT32, FLOAT64, assert_close
from tests.runtime.quick import quick_jit
from tests.runtime.reference import key_of, reference, reference_sums
from tests.runtime.toy import toy_batch, toy_model, toy_params
from tests.schedule.strategies import with_order

# 9 layers make 8, 4 and 2 stages of unequal, 3 and 1 of equal length. 10 examples do not divide by
# 3, 8 or 16 microbatches, nor do the 5 of one of two replicas by 2; and 16 are more than there are
# examples, so that some microbatches hold nothing but fillers.
NUM_LAYERS, NUM_EXAMPLES = 9, 10

MESHES = [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (1, 2), (2, 2), (3, 2), (4, 2)]
MICROBATCHES = [1, 2, 3, 5, 8, 16]
REMATS = ["none", "selective", "full"]


def ids(case: object) -> str:
    return "x".join(map(str, case)) if isinstance(case, tuple) else str(case)


def both_schedules(
    mesh: tuple[int, int], num_microbatches: int, remat: str
) -> dict[str, FunctionalPipeline]:
    """GPipe and 1F1B in one executable."""
    pipeline = FunctionalPipeline(
        toy_model(NUM_LAYERS),
        mesh=make_mesh(*mesh),
        num_microbatches=num_microbatches,
        schedule="gpipe",
        remat=remat,
    )
    pipeline = pipeline.with_schedule("1f1b")
    return {"1f1b": pipeline, "gpipe": pipeline.with_schedule("gpipe")}


def check(
    found: tuple[LossMeans, Params],
    pipeline: FunctionalPipeline,
    seed: int | None,
    dtype: str = "float64",
) -> None:
    """Compares loss, metrics and every gradient with the reference."""
    means, grads = found
    expected_means, expected_grads = reference(NUM_LAYERS, NUM_EXAMPLES, seed, dtype)
    tolerance = {"float64": FLOAT64, "float32": FLOAT32}[dtype]
    assert_close(pipeline.from_pipeline(grads), expected_grads, tolerance)
    assert_close(
        (means.loss, means.weight, means.metrics),
        (expected_means.loss, expected_means.weight, expected_means.metrics),
        tolerance,
    )


@pytest.mark.slow  # all together
@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("num_microbatches", MICROBATCHES)
@pytest.mark.parametrize("mesh", MESHES, ids=ids)
def test_every_gradient_is_that_of_the_plain_program(float64, mesh, num_microbatches, remat):
    pipelines = both_schedules(mesh, num_microbatches, remat)
    one = pipelines["1f1b"]
    step = quick_jit(engine.value_and_grad(one.spec, one.sizes))
    params, batch = one.to_pipeline(toy_params(NUM_LAYERS)), toy_batch(NUM_EXAMPLES)
    for pipeline in pipelines.values():
        means, grads = step(pipeline.table, params, batch, None)
        check((means, grads), pipeline, None)
        sums = reference_sums(NUM_LAYERS, NUM_EXAMPLES, None, num_microbatches, mesh[1])
        assert_close(means.microbatches, sums, FLOAT64)


# Every mesh, every number of microbatches and every kind of recomputation, some of them together.
DROPOUT_CASES = [
    ((1, 1), 1, "full"),
    ((2, 1), 16, "none"),
    ((3, 1), 3, "selective"),
    ((4, 1), 5, "full"),
    ((8, 1), 2, "selective"),
    ((1, 2), 3, "none"),
    ((2, 2), 8, "selective"),
    ((4, 2), 2, "full"),
]


@pytest.mark.parametrize(("mesh", "num_microbatches", "remat"), DROPOUT_CASES, ids=ids)
def test_dropout_is_that_of_the_plain_program(float64, mesh, num_microbatches, remat):
    pipelines = both_schedules(mesh, num_microbatches, remat)
    one = pipelines["1f1b"]
    step = quick_jit(engine.value_and_grad(one.spec, one.sizes))
    params, batch = one.to_pipeline(toy_params(NUM_LAYERS)), toy_batch(NUM_EXAMPLES)
    for pipeline in pipelines.values():
        check(step(pipeline.table, params, batch, key_of(3)), pipeline, 3)


def test_dropout_changes_the_loss_with_the_key(float64):
    """The test above would also pass if nothing were dropped."""
    losses = {float(reference(NUM_LAYERS, NUM_EXAMPLES, seed)[0].loss) for seed in (None, 3, 4)}
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("mesh", "num_microbatches", "remat"),
    [((1, 1), 3, "none"), ((4, 1), 8, "selective"), ((8, 1), 5, "full"), ((2, 2), 2, "selective")],
    ids=ids,
)
def test_float32(mesh, num_microbatches, remat):
    pipelines = both_schedules(mesh, num_microbatches, remat)
    one = pipelines["1f1b"]
    step = quick_jit(engine.value_and_grad(one.spec, one.sizes))
    params = one.to_pipeline(toy_params(NUM_LAYERS, "float32"))
    for pipeline in pipelines.values():
        found = step(pipeline.table, params, toy_batch(NUM_EXAMPLES, "float32"), None)
        check(found, pipeline, None, "float32")


@pytest.mark.parametrize("layers_per_stage", [(1, 1, 1, 6), (4, 1, 3, 1)], ids=ids)
def test_stages_as_the_user_cuts_them(float64, layers_per_stage):
    pipeline = FunctionalPipeline(
        toy_model(NUM_LAYERS),
        mesh=make_mesh(4),
        num_microbatches=5,
        layers_per_stage=layers_per_stage,
    )
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS))
    step = quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes))
    check(step(pipeline.table, params, toy_batch(NUM_EXAMPLES), None), pipeline, None)


def test_random_orders_run_in_one_executable(float64):
    """A table is an argument: any order that respects the dependencies gives the same gradients."""
    pipeline = FunctionalPipeline(
        toy_model(NUM_LAYERS), mesh=make_mesh(4), num_microbatches=5, schedule="gpipe"
    )
    # The most that any order of these actions needs: each action its own tick, each value its slot.
    actions = 2 * 4 * 5
    sizes = TableSizes(num_ticks=actions, num_activations=6, num_stashes=5, num_gradients=6)
    step = quick_jit(engine.value_and_grad(pipeline.spec, sizes))
    params, batch = pipeline.to_pipeline(toy_params(NUM_LAYERS)), toy_batch(NUM_EXAMPLES)

    @settings(
        max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(st.randoms(use_true_random=False))
    def run(random):
        schedule = with_order(gpipe(4, 5), random.shuffle)
        program = lower(schedule)
        assert sizes.holds(TableSizes.of(program))
        table = encode(program, sizes.num_ticks)
        check(step(table, params, batch, None), pipeline, None)

    run()
    assert step._cache_size() == 1


def test_microbatches_in_any_order(float64):
    """Nothing depends on microbatches coming in ascending order."""
    order = (3, 0, 4, 1, 2)
    rows = [
        [Action(kind, device, microbatch) for kind in (Kind.F, Kind.BW) for microbatch in order]
        for device in range(4)
    ]
    ascending = gpipe(4, 5)
    permuted = Schedule.of_actions(
        rows,
        name="permuted",
        num_devices=4,
        num_microbatches=5,
        placement=ascending.placement,
        backward=ascending.backward,
    )
    pipeline = FunctionalPipeline(
        toy_model(NUM_LAYERS), mesh=make_mesh(4), num_microbatches=5, schedule=permuted
    )
    params = pipeline.to_pipeline(toy_params(NUM_LAYERS))
    step = quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes))
    means, grads = step(pipeline.table, params, toy_batch(NUM_EXAMPLES), None)
    check((means, grads), pipeline, None)
    sums = reference_sums(NUM_LAYERS, NUM_EXAMPLES, None, 5, 1)
    assert_close(means.microbatches, sums, FLOAT64)


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("mesh", [(4, 1), (2, 2)], ids=ids)
def test_poisoned_bubbles_change_nothing(float64, mesh, remat):
    """Empty buffers are filled with NaN: not one bit of the results may change."""
    pipeline = both_schedules(mesh, 5, remat)["1f1b"]
    params, batch = pipeline.to_pipeline(toy_params(NUM_LAYERS)), toy_batch(NUM_EXAMPLES)
    clean, poisoned = (
        quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes, poison=poison))(
            pipeline.table, params, batch, key_of(3)
        )
        for poison in (False, True)
    )
    for ours, theirs in zip(jax.tree.leaves(poisoned), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.isfinite(ours).all()
