"""Contract 1 for models of unlike layers, with skips: any schedule, balance and recomputation."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.lower import Program, TableSizes
from jaxpipe.lower.table import Column
from jaxpipe.runtime import FunctionalPipeline, LossMeans, Params, make_mesh, profile
from jaxpipe.runtime.model import Layer, SequentialModel
from jaxpipe.schedule import Schedule, freeze, make_schedule
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit
from tests.runtime.reference import key_of
from tests.runtime.run_programs import NUM_EXAMPLES, run_programs
from tests.runtime.schedule_table import Group, groups
from tests.runtime.sequential_toy import (
    NUM_LAYERS,
    sequential_params,
    sequential_reference,
    sequential_toy,
)
from tests.runtime.toy import toy_batch


def make_pipeline(schedule: Schedule, data: int = 1, **options: Any) -> FunctionalPipeline:
    return FunctionalPipeline(
        options.pop("model", sequential_toy()),
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
    params = sequential_params()
    return run_programs(pipeline, params, programs, sizes, poison=poison)


def check(pipeline: FunctionalPipeline, **options: Any) -> None:
    """The step of a pipeline against the plain program."""
    programs = {"its own": pipeline.program}
    means, grads = run(pipeline, programs, pipeline.sizes, **options)["its own"]
    expected_means, expected_grads = sequential_reference(NUM_EXAMPLES, 0, pipeline.frozen)
    assert_close(means.loss, expected_means.loss, FLOAT64)
    assert_close(means.metrics, expected_means.metrics, FLOAT64)
    assert_close(grads, expected_grads, FLOAT64)


def check_group(group: Group, remat: str, data: int) -> None:
    programs, sizes = group.lowered(remat)
    some = next(iter(group.schedules.values()))
    pipeline = make_pipeline(some, data, remat=remat)
    expected_means, expected_grads = sequential_reference(NUM_EXAMPLES, 0)
    for means, grads in run(pipeline, programs, sizes).values():
        assert_close(means.loss, expected_means.loss, FLOAT64)
        wanted = expected_grads
        if not pipeline.spec.trains:
            wanted = jax.tree.map(jnp.zeros_like, expected_grads)
        assert_close(grads, wanted, FLOAT64)


SMALL = [group for group in groups() if " " in group.name and group.name.startswith("2x4 ")]
"""All schedules of two devices and four microbatches."""

CHOICES = [("selective", 1), ("full", 1), ("none", 2), ("except_last", 1)]


@pytest.mark.slow  # all together
@pytest.mark.parametrize(
    ("group", "remat", "data"),
    [
        pytest.param(group, *CHOICES[number % 4], id=group.name)
        for number, group in enumerate(SMALL)
    ],
)
def test_every_schedule(float64, group, remat, data):
    if next(iter(group.schedules.values())).num_stages > NUM_LAYERS:
        pytest.fail("the toy has too few layers")
    check_group(group, remat, data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "devices", "microbatches", "remat"),
    [
        ("gpipe", 4, 5, "except_last"),
        ("1f1b", 1, 3, "selective"),
        ("1f1b", 4, 6, "none"),
        ("zb_h1", 3, 5, "full"),
        ("interleaved_1f1b", 2, 4, "selective"),
        ("zbv", 4, 8, "selective"),
        ("chimera", 4, 8, "full"),
    ],
)
def test_gradients_are_those_of_the_plain_program(float64, name, devices, microbatches, remat):
    """Skips between neighbours, over several stages, and within one, by the sizes above."""
    check(make_pipeline(make_schedule(name, devices, microbatches), remat=remat))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers_per_stage", "remat"),
    [
        ("1f1b", (1, 1, 1, 6), "full"),
        ("1f1b", (6, 1, 1, 1), "selective"),
        ("zb_h1", (2, 1, 4, 2), "selective"),
        ("zb_h1", (0, 5, 4, 0), "full"),
        ("gpipe", (3, 0, 0, 6), "none"),
    ],
)
def test_any_balance(float64, name, layers_per_stage, remat):
    """Stages without a layer hand on what they get, skips included."""
    schedule = make_schedule(name, 4, 5)
    check(make_pipeline(schedule, layers_per_stage=layers_per_stage, remat=remat))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backward", "remat"),
    [
        ("1f1b", ["full", "input", "input", "full"], "selective"),
        ("1f1b", ["none", "none", "input", "full"], "full"),
        ("zb_h1", ["none", "input", "full", "full"], "selective"),
        ("zb_h1", ["full", "full", "input", "full"], "except_last"),
    ],
)
def test_frozen_stages(float64, name, backward, remat):
    check(make_pipeline(freeze(make_schedule(name, 4, 6), backward), remat=remat))


def test_idle_ticks_change_nothing(float64):
    check(make_pipeline(make_schedule("zb_h1", 4, 5), data=2), poison=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "devices"), [("1f1b", 3), ("interleaved_1f1b", 2), ("zbv", 2)])
def test_the_circular_forward_is_differentiable(float64, name, devices):
    pipeline = make_pipeline(make_schedule(name, devices, 4), data=2)
    params, batch = pipeline.to_pipeline(sequential_params()), toy_batch(NUM_EXAMPLES)
    means, grads = sequential_reference(NUM_EXAMPLES, 0)

    @quick_jit
    def step(params: Params) -> tuple[jax.Array, Params]:
        return jax.value_and_grad(lambda p: pipeline.evaluate(p, batch, key_of(0))[0])(params)

    loss, found = step(params)
    assert_close(loss, means.loss, FLOAT64)
    assert_close(pipeline.from_pipeline(found), grads, FLOAT64)


@pytest.mark.slow
def test_batches_of_any_size_between_steps(float64):
    """Evaluation leaves nothing behind, and needs no batch of the size that is trained on."""
    pipeline = make_pipeline(make_schedule("1f1b", 2, 4))
    params = pipeline.to_pipeline(sequential_params())
    first = pipeline.value_and_grad(params, toy_batch(8), key_of(0))
    for num_examples in (3, 1, 9):
        loss, _ = pipeline.evaluate(params, toy_batch(num_examples), key_of(0))
        assert_close(loss, sequential_reference(num_examples, 0)[0].loss, FLOAT64)
        outputs = pipeline.forward(params, toy_batch(num_examples))
        assert outputs.shape[0] == num_examples
    again = pipeline.value_and_grad(params, toy_batch(8), key_of(0))
    jax.tree.map(np.testing.assert_array_equal, again, first)


@pytest.mark.parametrize("layers_per_stage", [None, (1, 1, 1, 6), (0, 5, 4, 0)])
def test_parameters_come_back_by_layer(layers_per_stage):
    """Whatever the balance: a checkpoint of one is one of the other."""
    schedule = make_schedule("1f1b", 4, 5)
    pipeline = make_pipeline(schedule, layers_per_stage=layers_per_stage)
    params = sequential_params("float32")
    there = pipeline.to_pipeline(params)
    assert {leaf.shape[:3] for leaf in jax.tree.leaves(there)} == {(4, 1, 1)}
    jax.tree.map(np.testing.assert_array_equal, pipeline.from_pipeline(there), params)


def test_padding_holds_zeros_and_has_no_gradient():
    """So norms and elementwise optimizers are those of the layers."""
    pipeline = make_pipeline(make_schedule("1f1b", 4, 4), model=sequential_toy("float32"))
    params = sequential_params("float32")
    there = pipeline.to_pipeline(params)
    (_, _), grads = pipeline.value_and_grad(there, toy_batch(8, "float32"))

    def square(tree: Any) -> float:
        return float(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))

    assert square(there) == pytest.approx(square(params))
    assert square(grads) == pytest.approx(square(pipeline.from_pipeline(grads)))


def counting_model(counts: collections.Counter[str]) -> SequentialModel:
    """The toy, every layer of which counts its runs in a value that its result depends on."""

    def counted(layer: Layer) -> Layer:
        def count(_: Any) -> np.ndarray:
            counts[layer.name] += 1
            return np.zeros((), np.float32)

        def block(*operands: Any) -> Any:
            result = layer.block(*operands)
            leaves, structure = jax.tree.flatten(result)
            seen = jax.lax.stop_gradient(jnp.ravel(leaves[0])[0])
            zero = jax.pure_callback(count, jax.ShapeDtypeStruct((), np.float32), seen)
            return structure.unflatten([leaves[0] + zero.astype(leaves[0].dtype), *leaves[1:]])

        return dataclasses.replace(layer, block=block)

    model = sequential_toy("float32")
    return dataclasses.replace(model, layers=tuple(map(counted, model.layers)))


@pytest.mark.parametrize(("remat", "times"), [("none", 1), ("full", 2)])
def test_every_layer_runs_once_for_a_microbatch(remat, times):
    """On its own device, in no idle tick, and again only if it is recomputed.

    Under 1F1B with everything recomputed there is one slot of stashes. Its number was no longer
    part of the program, nothing tied what was read to the conditional around it, and what the
    backward computes of it again ran in every tick of every device: 47 times for 5 microbatches.
    """
    counts: collections.Counter[str] = collections.Counter()
    schedule = make_schedule("1f1b", 3, 5)
    pipeline = make_pipeline(schedule, model=counting_model(counts), remat=remat)
    params = pipeline.to_pipeline(sequential_params("float32"))
    jax.block_until_ready(pipeline.value_and_grad(params, toy_batch(10, "float32")))
    jax.effects_barrier()
    assert set(counts) == {layer.name for layer in sequential_toy().layers}
    assert all(5 <= count <= 5 * times for count in counts.values()), counts


def test_nothing_is_computed_for_the_input_of_the_first_layer():
    """Plain autodiff would not either: the gradient of an image is as dear as that of a layer."""
    kernel = jax.ShapeDtypeStruct((64, 64), "float32")

    def block(params: Any, inputs: tuple, batch: Any, keys: Any) -> tuple:
        return jnp.tanh(inputs[0] @ params), {}

    layers = tuple(Layer(name=name, params=kernel, block=block) for name in "ab")
    model = SequentialModel(
        layers=layers,
        inputs=lambda batch: batch,
        loss=lambda outputs, batch: (outputs**2).sum(-1),
    )
    pipeline = FunctionalPipeline(model, mesh=make_mesh(1), num_microbatches=1)
    params = pipeline.to_pipeline(Params({name: jnp.eye(64) for name in "ab"}, ()))
    text = str(
        jax.make_jaxpr(lambda *operands: pipeline.value_and_grad(*operands))(
            params, jnp.ones((4, 64))
        )
    )
    # Two forwards, two weight gradients, and one gradient of an input.
    assert text.count("dot_general") == 5


def test_no_convolution_runs_twice():
    """`"selective"` keeps their results, as it does those of matmuls."""

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def block(params: Any, inputs: tuple, batch: Any, keys: Any) -> tuple:
        return convolve(jnp.tanh(convolve(inputs[0], params[0])), params[1]), {}

    kernels = [jax.ShapeDtypeStruct((3, 3, 2, 2), "float32")] * 2
    model = SequentialModel(
        layers=(Layer(name="both", params=kernels, block=block),),
        inputs=lambda batch: batch,
        loss=lambda outputs, batch: (outputs**2).sum((1, 2, 3)),
    )
    pipeline = FunctionalPipeline(model, mesh=make_mesh(1), num_microbatches=1)
    params = pipeline.to_pipeline(Params({"both": [jnp.ones((3, 3, 2, 2))] * 2}, ()))
    step = jax.make_jaxpr(lambda *operands: pipeline.value_and_grad(*operands))
    text = str(step(params, jnp.ones((1, 4, 4, 2))))
    # Two forwards, the gradients of both kernels, and of what lies between.
    assert text.count("= conv_general_dilated") == 5


def test_the_plan_counts_layers_and_reports_the_padding():
    pipeline = make_pipeline(make_schedule("1f1b", 3, 6), layers_per_stage=(4, 3, 2))
    shapes = jax.eval_shape(pipeline.to_pipeline, sequential_params("float32"))
    plan = pipeline.plan(shapes, toy_batch(12, "float32"))
    assert plan.layers_per_stage == (4, 3, 2)
    assert plan.parameters_per_stage == (83, 43, 45)
    text = str(plan)
    assert "4: 83, 3: 43, 2: 45" in text
    assert "padding" in text
    assert 0 < plan.padding["parameters"] == pytest.approx(1 - (83 + 43 + 45) / (3 * 83))


@pytest.mark.parametrize("counts", [(3, 3, 3, 0, 0), (9,), (4, 4, 4, -3)])
def test_balances_that_do_not_fit_are_refused(counts: Sequence[int]):
    with pytest.raises(ValueError, match="layers_per_stage must hold 4 numbers"):
        make_pipeline(make_schedule("1f1b", 4, 4), layers_per_stage=counts)


def test_slices_are_refused():
    with pytest.raises(ValueError, match="state"):
        FunctionalPipeline(sequential_toy(), mesh=make_mesh(2), num_microbatches=4, slices=2)


def test_measured_costs_are_those_of_each_stage(monkeypatch):
    """Unlike stages are measured one by one: here on a clock that tells the stage of the row."""

    def by_the_row(run: Any, state: Any, row: Any, operands: Any, repeats: int) -> tuple:
        state = run(state, row, operands)
        forward, backward = bool(row[Column.FORWARD]), bool(row[Column.BACKWARD])
        stage = int(row[Column.FORWARD + 1] if forward else row[Column.BACKWARD + 1])
        return state, float(forward + 10 * backward + 100 * stage)

    monkeypatch.setattr(profile, "_time", by_the_row)
    pipeline = make_pipeline(make_schedule("1f1b", 4, 4))
    params = pipeline.to_pipeline(sequential_params("float32"))
    costs = pipeline.measure(params, toy_batch(8, "float32"), repeats=1)
    found = {str(kind): seconds for kind, seconds in costs.by_stage}
    assert found == {"F": (1.0, 101.0, 201.0, 301.0), "BW": (10.0, 110.0, 210.0, 310.0)}
