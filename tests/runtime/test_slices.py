"""Token slices: however sequences are cut and slices scheduled, the gradients are the same."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpipe.lower import TableSizes, TickForm, encode, lower
from jaxpipe.runtime import FunctionalPipeline, StatefulBlock, engine, make_mesh, plain
from jaxpipe.runtime.slices import choose_slicing, cut_tokens
from jaxpipe.schedule import (
    Schedule,
    fill_weights,
    freeze,
    make_schedule,
    slice_microbatches,
)
from tests.runtime.as_users_call import unchecked
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit
from tests.runtime.sliced_toy import (
    LENGTH,
    block,
    embed,
    initial_state,
    sliced_batch,
    sliced_model,
    sliced_params,
    sliced_reference,
    stateful_block,
)
from tests.runtime.toy import drop
from tests.schedule.strategies import legal_schedules

NUM_LAYERS, NUM_EXAMPLES = 9, 11


def make_pipeline(schedule: str | Schedule, **options: Any) -> FunctionalPipeline:
    num_devices, num_microbatches = 4, 5
    if isinstance(schedule, Schedule):
        num_devices, num_microbatches = schedule.num_devices, schedule.num_microbatches
    model = options.pop("model", None) or sliced_model(NUM_LAYERS)
    settings = {
        "mesh": make_mesh(options.pop("pipe", num_devices), options.pop("data", 1)),
        "num_microbatches": num_microbatches,
    }
    return FunctionalPipeline(model, schedule=schedule, **(settings | options))


def check(pipeline: FunctionalPipeline, *, poison: bool = False) -> None:
    """The step gives what the plain program gives on whole sequences."""
    num_examples = NUM_EXAMPLES + (NUM_EXAMPLES % pipeline.spec.num_replicas)
    params, batch = sliced_params(NUM_LAYERS), sliced_batch(num_examples)
    step = quick_jit(engine.value_and_grad(pipeline.spec, pipeline.sizes, poison=poison))
    means, grads = step(pipeline.table, pipeline.to_pipeline(params), batch, None)
    if any(pipeline.frozen.layers):
        reference = functools.partial(
            plain.value_and_grad, pipeline.spec.model, frozen=pipeline.frozen
        )
        expected_means, expected = quick_jit(reference)(params, batch, None)
    else:
        expected_means, expected = sliced_reference(NUM_LAYERS, num_examples)
    assert_close(means.loss, expected_means.loss, FLOAT64)
    assert_close(means.metrics, expected_means.metrics, FLOAT64)
    assert_close(pipeline.from_pipeline(grads), expected, FLOAT64)


@pytest.mark.parametrize("slices", [1, 2, 4, (1, 2, 4), (1, 1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("remat", ["none", "selective", "full"])
def test_gradients_are_those_of_whole_sequences(float64, slices, remat):
    check(make_pipeline("seq1f1b", slices=slices, remat=remat))


@pytest.mark.parametrize(
    "name",
    ["terapipe", "gpipe", "1f1b", "eager_1f1b", "interleaved_1f1b", "zb_h1", "zbv", "hanayo"],
)
def test_every_schedule_takes_slices(float64, name):
    check(make_pipeline(name, slices=(4, 2, 1)))


@pytest.mark.parametrize(
    "schedule",
    [
        fill_weights(make_schedule("seq1f1b", 4, 5, num_slices=3)),
        slice_microbatches(fill_weights(make_schedule("interleaved_1f1b", 4, 4)), 3),
        slice_microbatches(make_schedule("chimera", 4, 4), 3),
        freeze(make_schedule("seq1f1b", 4, 5, num_slices=3), ["full", "input", "input", "full"]),
        freeze(
            fill_weights(make_schedule("seq1f1b", 4, 5, num_slices=3)),
            ["none", "input", "full", "full"],
        ),
    ],
    ids=["seq1f1b, W filled in", "interleaved, W filled in", "chimera", "frozen", "frozen, split"],
)
@pytest.mark.parametrize("remat", ["selective", "except_last"])
def test_transformed_schedules(float64, schedule, remat):
    check(make_pipeline(schedule, slices=(4, 2, 1), remat=remat), poison=True)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 2), (4, 1, 2), (2, 5, 1)])
def test_meshes_and_microbatches(float64, sizes):
    pipe, num_microbatches, data = sizes
    check(
        make_pipeline("seq1f1b", slices=3, pipe=pipe, data=data, num_microbatches=num_microbatches)
    )


@pytest.mark.slow  # one compilation for each example
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(legal_schedules(max_slices=3), st.sampled_from([0, 1]), st.sampled_from(list(TickForm)))
def test_random_legal_schedules(float64, schedule, hop_ticks, form):
    pipeline = make_pipeline(schedule)
    program = lower(schedule, form=form, hop_ticks=hop_ticks)
    pipeline.program, pipeline.sizes = program, TableSizes.of(program)
    pipeline.__dict__["table"] = encode(program)
    check(pipeline, poison=True)


def test_evaluation_takes_whole_sequences(float64):
    pipeline = make_pipeline("seq1f1b", slices=3)
    params, batch = sliced_params(NUM_LAYERS), sliced_batch(NUM_EXAMPLES)
    loss, _ = pipeline.evaluate(pipeline.to_pipeline(params), batch)
    assert_close(loss, sliced_reference(NUM_LAYERS, NUM_EXAMPLES)[0].loss, FLOAT64)


def test_another_schedule_gets_the_same_slices(float64):
    pipeline = make_pipeline("terapipe", slices=(4, 2, 1))
    other = pipeline.with_schedule("seq1f1b")
    assert other.program.schedule.num_slices == 3
    check(other)


def test_measured_costs_tell_slices_apart(float64):
    pipeline = make_pipeline("seq1f1b", slices=(5, 1, 1))
    params = pipeline.to_pipeline(sliced_params(NUM_LAYERS))
    costs = pipeline.measure(params, sliced_batch(NUM_EXAMPLES), repeats=1)
    assert len(costs.slice_shares) == 3
    assert sum(costs.slice_shares) == pytest.approx(1.0)
    assert pipeline.plan(params, sliced_batch(NUM_EXAMPLES), costs=costs).step_seconds


def test_the_plan_names_the_slices(float64):
    pipeline = make_pipeline("seq1f1b", slices=(4, 2, 1))
    params = pipeline.to_pipeline(sliced_params(NUM_LAYERS))
    text = str(pipeline.plan(params, sliced_batch(NUM_EXAMPLES)))
    assert "slices      4 + 2 + 1 = 7 tokens of each example" in text


def test_slices_are_as_equal_as_can_be():
    found = [(each.start, each.stop, each.is_last) for each in cut_tokens(7, 3)]
    assert found == [(0, 3, False), (3, 5, False), (5, 7, True)]


def expect(message: str, pipeline: FunctionalPipeline, batch: Any = None) -> None:
    params = pipeline.to_pipeline(sliced_params(NUM_LAYERS))
    with pytest.raises(ValueError, match=re.escape(message)):
        pipeline.value_and_grad(params, batch or sliced_batch(NUM_EXAMPLES))


def test_lengths_must_sum_to_the_tokens(float64):
    expect(
        "the lengths of the slices must sum to the 7 tokens of a sequence, but 4 + 2 = 6; make the "
        "last one 3, or leave the lengths out",
        make_pipeline("seq1f1b", slices=(4, 2)),
    )
    expect("7 tokens can't be cut into 8 slices", make_pipeline("seq1f1b", slices=8))


def test_blocks_without_a_state_can_not_be_cut():
    """Attention that is not causal has none: its tokens see later ones."""
    model = sliced_model(NUM_LAYERS, stateful=None)
    with pytest.raises(ValueError, match="needs blocks that go on from the state"):
        make_pipeline("seq1f1b", model=model)
    assert make_pipeline("1f1b", model=model, slices=1)


def test_losses_must_be_of_tokens(float64):
    def per_example(logits: Any, batch: Any) -> jax.Array:
        return jnp.mean(logits, axis=(1, 2))

    expect(
        "token slices need a loss for every token, [batch_size, tokens]",
        make_pipeline("seq1f1b", model=sliced_model(NUM_LAYERS, loss=per_example)),
    )


def test_embeddings_must_be_of_tokens(float64):
    def pooling(outer: Any, batch: Any, keys: Any) -> Any:
        return {"h": outer["table"][batch["tokens"]][:, :3], "tokens": batch["tokens"][:, :3]}

    expect(
        "token slices need an embedding that gives something for every token",
        make_pipeline("seq1f1b", model=sliced_model(NUM_LAYERS, embed=pooling)),
    )


def test_states_must_stay_what_they_are(float64):
    def other_dtype(*operands: Any) -> Any:
        y, state = stateful_block(*operands)
        return y, {**state, "sum": state["sum"].astype("float32")}

    def other_structure(*operands: Any) -> Any:
        y, state = stateful_block(*operands)
        return y, {"keys": state["keys"]}

    for changed, message in (
        (other_dtype, "state['sum'] float64[3, 4] becomes float32[3, 4]"),
        (other_structure, "a block must return a state like that of initial_state"),
    ):
        stateful = StatefulBlock(initial_state=initial_state, block=changed)
        expect(message, make_pipeline("seq1f1b", model=sliced_model(NUM_LAYERS, stateful=stateful)))


@pytest.mark.parametrize(
    ("slices", "error", "message"),
    [
        ("4", TypeError, "slices must be a number of slices, such as 4, or the length of each"),
        (2.0, TypeError, "slices must be a number of slices"),
        (True, TypeError, "slices must be a number of slices"),
        (0, ValueError, "every slice must have at least one token"),
        ((), ValueError, "every slice must have at least one token"),
        ((3, 0, 4), ValueError, "every slice must have at least one token"),
    ],
)
def test_what_is_no_slicing(slices, error, message):
    with pytest.raises(error, match=message):
        unchecked(choose_slicing)(slices)


def test_a_schedule_and_its_slices_must_agree():
    with pytest.raises(ValueError, match="has 2 slices of each microbatch, but slices= asks for 3"):
        make_pipeline(make_schedule("seq1f1b", 4, 5, num_slices=2), slices=3)
    with pytest.raises(ValueError, match="into 2 slices, but the pipeline was made for 1"):
        make_pipeline("1f1b").with_schedule("seq1f1b")
    with pytest.raises(ValueError, match="whose slices have no order of their own"):
        make_pipeline("dualpipe", slices=2, num_microbatches=8)


def test_the_state_may_be_the_only_thing_that_is_sliced(float64):
    """Blocks whose tokens do not see each other have no state at all."""

    def alone(params: Any, x: Any, batch: Any, keys: Any) -> Any:
        hidden = jnp.tanh(x["h"] @ params["key"] + params["start"])
        return {**x, "h": x["h"] + hidden @ params["down"] * params["scale"]}

    stateful = StatefulBlock(
        initial_state=lambda params, x, batch: {},
        block=lambda params, x, state, batch, keys: (alone(params, x, batch, keys), state),
    )
    model = dataclasses.replace(sliced_model(NUM_LAYERS), block=alone, stateful=stateful)
    pipeline = make_pipeline("seq1f1b", model=model, slices=3)
    params, batch = sliced_params(NUM_LAYERS), sliced_batch(NUM_EXAMPLES)
    (loss, _), grads = pipeline.value_and_grad(pipeline.to_pipeline(params), batch)
    means, expected = quick_jit(functools.partial(plain.value_and_grad, model))(params, batch, None)
    assert_close(loss, means.loss, FLOAT64)
    assert_close(pipeline.from_pipeline(grads), expected, FLOAT64)


def test_a_model_that_keeps_its_side_of_the_bargain_passes_the_check(float64):
    pipeline = make_pipeline("seq1f1b", slices=(4, 2, 1))
    params = pipeline.to_pipeline(sliced_params(NUM_LAYERS))
    pipeline.check_slices(params, sliced_batch(NUM_EXAMPLES), tolerance=1e-12)
    make_pipeline("1f1b").check_slices(params, sliced_batch(NUM_EXAMPLES))


def count_positions_anew(outer: Any, batch: Any, keys: Any) -> Any:
    return embed(outer, {"tokens": batch["tokens"]}, keys)


def forget_the_sum(params: Any, x: Any, state: Any, batch: Any, keys: Any) -> Any:
    y, after = stateful_block(params, x, state, batch, keys)
    return y, {**after, "sum": state["sum"]}


def drop_by_shape(outer: Any, x: Any, batch: Any, keys: Any) -> Any:
    return drop(x["h"] * outer["gain"], keys, 0.5) @ outer["table"].T


@pytest.mark.parametrize(
    "parts",
    [
        {"embed": count_positions_anew},
        {"stateful": StatefulBlock(initial_state=initial_state, block=forget_the_sum)},
        {"head": drop_by_shape},
    ],
    ids=["positions", "state", "dropout"],
)
def test_a_model_that_does_not_is_found_out(float64, parts):
    """None of this shows in shapes: gradients would just be others."""
    pipeline = make_pipeline("seq1f1b", slices=3, model=sliced_model(NUM_LAYERS, **parts))
    params = pipeline.to_pipeline(sliced_params(NUM_LAYERS))
    with pytest.raises(ValueError, match="on 3 slices the model gives outputs that differ by"):
        pipeline.check_slices(params, sliced_batch(NUM_EXAMPLES), jax.random.key(0))


def test_the_toy_is_one_function_of_whole_and_of_cut_sequences(float64):
    params = jax.tree.map(lambda leaf: leaf[0], sliced_params(NUM_LAYERS).blocks)
    batch = sliced_batch(NUM_EXAMPLES)
    h = jax.random.normal(jax.random.key(0), (NUM_EXAMPLES, LENGTH, 4), "float64")
    x = {"h": h, "tokens": batch["tokens"]}
    front, back = (
        {"h": x["h"][:, part], "tokens": x["tokens"][:, part]}
        for part in (slice(0, 4), slice(4, None))
    )
    one, state = stateful_block(params, front, initial_state(params, front, batch), batch, None)
    other, _ = stateful_block(params, back, state, batch, None)
    both = jnp.concatenate([one["h"], other["h"]], axis=1)
    assert_close(both, block(params, x, batch, None)["h"], FLOAT64)
