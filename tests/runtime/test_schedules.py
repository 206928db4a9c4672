"""Contract 1 for every schedule: whatever the order of its actions, the gradients are the same.

One table over schedules, sizes, recomputation and replicas. Schedules that can share a step do
(`tests/runtime/schedule_table.py`).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpipe.lower import Program, TableSizes, TickForm, lower
from jaxpipe.runtime import FunctionalPipeline, LossMeans, Params, engine, make_mesh, plain
from jaxpipe.schedule import Schedule, freeze, insert_recompute, make_schedule, schedule_names
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit
from tests.runtime.reference import key_of, reference
from tests.runtime.run_programs import NUM_EXAMPLES, run_programs
from tests.runtime.schedule_table import ELSEWHERE, Group, groups
from tests.runtime.toy import block, toy_batch, toy_model, toy_params
from tests.schedule.strategies import legal_schedules


def layers_for(schedule: Schedule) -> int:
    """Layers enough for all stages, and not equally many for each."""
    return 9 if schedule.num_stages <= 8 else schedule.num_stages + 1


def make_pipeline(schedule: Schedule, data: int = 1, **options: Any) -> FunctionalPipeline:
    return FunctionalPipeline(
        toy_model(layers_for(schedule)),
        mesh=make_mesh(schedule.num_devices, data),
        num_microbatches=schedule.num_microbatches,
        schedule=schedule,
        **options,
    )


def run(
    pipeline: FunctionalPipeline,
    programs: dict[str, Program],
    sizes: TableSizes,
    *,
    poison: bool = False,
) -> dict[str, tuple[LossMeans, Params]]:
    """Loss and gradients in layer order for each of the programs, by one step."""
    params = toy_params(pipeline.spec.model.num_layers)
    return run_programs(pipeline, params, programs, sizes, poison=poison)


def check_group(group: Group, remat: str, data: int) -> None:
    programs, sizes = group.lowered(remat)
    some = next(iter(group.schedules.values()))
    pipeline = make_pipeline(some, data, remat=remat)
    expected_means, expected_grads = reference(layers_for(some), NUM_EXAMPLES, 0)
    trains = pipeline.spec.trains
    for means, grads in run(pipeline, programs, sizes).values():
        assert_close(means.loss, expected_means.loss, FLOAT64)
        assert_close(means.metrics, expected_means.metrics, FLOAT64)
        wanted = expected_grads if trains else jax.tree.map(jnp.zeros_like, expected_grads)
        assert_close(grads, wanted, FLOAT64)


def test_no_schedule_is_left_out():
    found = {name for group in groups() for name in group.schedules}
    assert found >= set(schedule_names()) - ELSEWHERE


@pytest.mark.parametrize("group", groups(), ids=lambda group: group.name)
def test_gradients_are_those_of_the_plain_program(float64, group):
    check_group(group, "selective", data=1)


CHOICES = [("none", 1), ("full", 1), ("except_last", 2), ("selective", 2)]


@pytest.mark.slow  # all together
@pytest.mark.parametrize(
    ("group", "remat", "data"),
    # Every group meets two of the choices, and neighbours, which are alike, the other two.
    [
        pytest.param(
            group, *CHOICES[choice], id=f"{group.name}-{'-'.join(map(str, CHOICES[choice]))}"
        )
        for number, group in enumerate(groups())
        for choice in (number % 4, (number + 2) % 4)
    ],
)
def test_gradients_whatever_is_recomputed_and_replicated(float64, group, remat, data):
    check_group(group, remat, data)


def plain_gradients(pipeline: FunctionalPipeline) -> tuple[LossMeans, Params]:
    """The reference for a pipeline that may have frozen stages."""
    num_layers = pipeline.spec.model.num_layers
    function = functools.partial(plain.value_and_grad, pipeline.spec.model, frozen=pipeline.frozen)
    return quick_jit(function)(toy_params(num_layers), toy_batch(NUM_EXAMPLES), key_of(0))


@pytest.mark.parametrize("form", TickForm)
@pytest.mark.parametrize("hop_ticks", [0, 1])
@pytest.mark.parametrize("name", ["1f1b", "zbv", "chimera"])
def test_every_tick_form_and_hop(float64, name, form, hop_ticks):
    schedule = insert_recompute(make_schedule(name, 4, 8), [1])
    pipeline = make_pipeline(schedule)
    program = lower(schedule, form=form, hop_ticks=hop_ticks)
    assert program.hop_ticks == hop_ticks
    found = run(pipeline, {name: program}, TableSizes.of(program))[name]
    expected_means, expected_grads = reference(9, NUM_EXAMPLES, 0)
    assert_close(found[0].loss, expected_means.loss, FLOAT64)
    assert_close(found[1], expected_grads, FLOAT64)


@pytest.mark.parametrize(
    ("name", "backward", "remat"),
    [
        ("1f1b", ["full", "input", "input", "full"], "selective"),
        ("1f1b", ["none", "none", "input", "full"], "full"),
        ("1f1b", ["input", "full", "full", "input"], "none"),
        ("zb_h1", ["none", "input", "full", "full"], "selective"),
        ("zb_h1", ["full", "full", "input", "full"], "except_last"),
        ("interleaved_1f1b", ["none"] * 4 + ["full"] * 4, "selective"),
        ("zbv", ["none"] * 3 + ["input"] * 3 + ["full"] * 2, "full"),
        ("chimera", ["none", "full", "input", "full"], "selective"),
        ("gpipe", ["input"] * 4, "selective"),
    ],
)
def test_frozen_stages(float64, name, backward, remat):
    schedule = freeze(make_schedule(name, 4, 8), backward)
    pipeline = make_pipeline(schedule, remat=remat)
    programs = {name: pipeline.program}
    means, grads = run(pipeline, programs, pipeline.sizes)[name]
    expected_means, expected_grads = plain_gradients(pipeline)
    assert_close(means.loss, expected_means.loss, FLOAT64)
    assert_close(grads, expected_grads, FLOAT64)
    frozen = [layer for layer, is_frozen in enumerate(pipeline.frozen.layers) if is_frozen]
    assert frozen
    for leaf in jax.tree.leaves(grads.blocks):
        assert not np.asarray(leaf)[frozen].any()


def test_a_chunk_that_is_frozen_on_all_devices_has_no_gradient_buffer():
    schedule = make_schedule("interleaved_1f1b", 4, 8)
    half_frozen = freeze(schedule, ["none"] * 4 + ["full"] * 4)
    assert make_pipeline(schedule).spec.trained_chunks == (0, 1)
    assert make_pipeline(half_frozen).spec.trained_chunks == (1,)


@pytest.mark.parametrize("layers_per_stage", [(0, 4, 5, 0), (0, 0, 9, 0), (9, 0, 0, 0)])
@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_stages_that_only_embed_or_are_only_the_head(float64, name, layers_per_stage):
    pipeline = make_pipeline(make_schedule(name, 4, 8), layers_per_stage=layers_per_stage)
    means, grads = run(pipeline, {name: pipeline.program}, pipeline.sizes)[name]
    expected_means, expected_grads = reference(9, NUM_EXAMPLES, 0)
    assert_close(means.loss, expected_means.loss, FLOAT64)
    assert_close(grads, expected_grads, FLOAT64)
    loss, _ = pipeline.evaluate(
        pipeline.to_pipeline(toy_params(9)), toy_batch(NUM_EXAMPLES), key_of(0)
    )
    assert_close(loss, expected_means.loss, FLOAT64)


@pytest.mark.slow  # one compilation for each example
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(legal_schedules(max_slices=1), st.sampled_from([0, 1]), st.sampled_from(list(TickForm)))
def test_random_legal_schedules(float64, schedule, hop_ticks, form):
    """Random placements and orders, with B and W or BW, R here and there, and frozen stages."""
    pipeline = make_pipeline(schedule)
    program = lower(schedule, form=form, hop_ticks=hop_ticks)
    found = run(pipeline, {"random": program}, TableSizes.of(program), poison=True)["random"]
    expected_means, expected_grads = plain_gradients(pipeline)
    assert_close(found[0].loss, expected_means.loss, FLOAT64)
    assert_close(found[1], expected_grads, FLOAT64)


@pytest.mark.parametrize("name", ["zb_h1", "zbv", "dualpipe"])
def test_microbatches_in_any_order(float64, name):
    """Schedules permute the microbatches of a path without changing a bit of their sums' terms."""
    schedule = make_schedule(name, 4, 8)
    halves = [(3, 1, 2, 0), (7, 5, 4, 6)]
    order = [microbatch for half in halves for microbatch in half]
    rows = tuple(
        tuple(
            tuple(action._replace(microbatch=order[action.microbatch or 0]) for action in cell)
            for cell in row
        )
        for row in schedule.rows
    )
    permuted = dataclasses.replace(schedule, rows=rows)
    pipeline = make_pipeline(schedule)
    programs = {"ascending": lower(schedule), "permuted": lower(permuted)}
    sizes = functools.reduce(TableSizes.join, map(TableSizes.of, programs.values()))
    found = run(pipeline, programs, sizes)
    (means, grads), (other_means, other_grads) = found["ascending"], found["permuted"]
    same = jax.tree.map(
        lambda a, b: bool((a == b).all()), means.microbatches, other_means.microbatches
    )
    assert jax.tree.all(same)
    assert_close(other_grads, grads, FLOAT64)


def scanning_block(params: Any, x: Any, batch: Any, keys: Any) -> Any:
    """The toy's block, and behind it the same matmuls three times in a loop."""

    def again(h: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h @ params["up"]) @ params["down"] + h
        return h, jnp.mean(h, axis=(1, 2))

    h, means = jax.lax.scan(again, block(params, x, batch, keys)["h"], None, length=3)
    return {**x, "h": h * (1 + means[1, :, None, None])}


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_blocks_with_a_loop_inside(float64, name):
    """The loop of the backward is cut into one for B and one for W."""
    model = toy_model(9, block=scanning_block)
    pipeline = FunctionalPipeline(
        model, mesh=make_mesh(4), num_microbatches=8, schedule=make_schedule(name, 4, 8)
    )
    means, grads = run(pipeline, {name: pipeline.program}, pipeline.sizes)[name]
    expected = quick_jit(functools.partial(plain.value_and_grad, model))
    expected_means, expected_grads = expected(toy_params(9), toy_batch(NUM_EXAMPLES), key_of(0))
    assert_close(means.loss, expected_means.loss, FLOAT64)
    assert_close(grads, expected_grads, FLOAT64)


def test_orders_share_their_step(float64):
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
@pytest.mark.parametrize("name", ["zb_h1", "zbv", "dualpipe"])
def test_poisoned_slots_change_nothing(float64, name, remat):
    pipeline = make_pipeline(make_schedule(name, 4, 8), remat=remat)
    programs = {name: pipeline.program}
    clean, poisoned = (
        run(pipeline, programs, pipeline.sizes, poison=poison)[name] for poison in (False, True)
    )
    same = jax.tree.map(lambda one, other: bool((one == other).all()), clean, poisoned)
    assert jax.tree.all(same)
