"""A Flax model becomes a pipeline and comes back, whatever its form."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpipe import Params, Pipeline, make_mesh
from jaxpipe.nn.flax_model import take_apart
from tests.nn import models
from tests.nn.models import Block, Embed, Head, Model, Nested, loss, make_batch
from tests.runtime.as_users_call import unchecked
from tests.runtime.closeness import FLOAT64, assert_close

FORMS = pytest.mark.parametrize(
    "options",
    [
        {"is_stacked": is_stacked, "is_tied": is_tied}
        for is_stacked in (False, True)
        for is_tied in (False, True)
    ],
    ids=["list untied", "list tied", "stacked untied", "stacked tied"],
)


def make_pipeline(model: nnx.Module, num_stages: int = 2, **options: Any) -> Pipeline:
    options = {"num_microbatches": 3, **options}
    return Pipeline(model, options.pop("loss", loss), mesh=make_mesh(num_stages), **options)


def assert_identical(found: nnx.Module, expected: nnx.Module) -> None:
    """Same structure, same bits."""
    (structure, state), (expected_structure, expected_state) = nnx.split(found), nnx.split(expected)
    assert structure == expected_structure
    jax.tree.map(np.testing.assert_array_equal, state, expected_state)


@FORMS
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_there_and_back_is_the_same_model(options, num_stages):
    model = Model(**options)
    pipeline = make_pipeline(model, num_stages)
    back: Any = pipeline.to_plain(pipeline.params(model))
    assert_identical(back, model)
    if options["is_tied"]:
        assert back.head.table is back.embed.table
    np.testing.assert_array_equal(back(make_batch()["tokens"]), model(make_batch()["tokens"]))


@FORMS
def test_gradients_and_outputs_are_those_of_the_model_itself(float64, options):
    """Not even the library's own reference is involved: Flax alone says what is right."""
    model = Model(dtype="float64", **options)
    pipeline = make_pipeline(model)
    params, batch = pipeline.params(model), make_batch()

    def mean_loss(model: Model) -> jax.Array:
        return loss(model(batch["tokens"]), targets=batch["targets"]).mean()

    expected_loss, expected = nnx.jit(nnx.value_and_grad(mean_loss))(model)
    (value, _), grads = pipeline.value_and_grad(params, batch)
    found = nnx.state(pipeline.to_plain(grads))
    assert_close(nnx.to_pure_dict(found), nnx.to_pure_dict(expected), FLOAT64)
    assert_close(value, expected_loss, FLOAT64)
    assert_close(pipeline.forward(params, batch), model(batch["tokens"]), FLOAT64)


def test_parts_at_other_paths_and_as_functions(float64):
    model = Nested(dtype="float64")
    by_path = make_pipeline(
        model, embed="decoder.embed", blocks="decoder.blocks", head="decoder.head"
    )
    by_function = make_pipeline(
        model,
        embed=lambda model, tokens: model.decoder.embed(tokens),
        blocks="decoder.blocks",
        head=lambda model, x: model.decoder.head(x),
    )
    plain = make_pipeline(model.decoder)
    batch = make_batch()
    expected, _ = plain.value_and_grad(plain.params(model.decoder), batch)
    for pipeline in (by_path, by_function):
        params = pipeline.params(model)
        (value, _), _ = pipeline.value_and_grad(params, batch)
        assert_close(value, expected[0], FLOAT64)
        assert_identical(pipeline.to_plain(params), model)


def test_initial_parameters_are_the_same_for_every_layout():
    """No stage gets another's numbers, and no number depends on the number of stages."""
    model = Model(is_stacked=True)
    expected = take_apart(model).parameters(model)
    for num_stages in (1, 2, 4):
        pipeline = make_pipeline(model, num_stages)
        params = pipeline.from_pipeline(pipeline.params(Model(is_stacked=True)))
        jax.tree.map(np.testing.assert_array_equal, params, expected)
    kernels = np.asarray(expected.blocks["linear"]["kernel"])
    assert len(np.unique(kernels)) == kernels.size


def test_an_abstract_model_is_enough(float64):
    model = Model(is_stacked=True)
    abstract = make_pipeline(nnx.eval_shape(lambda: Model(is_stacked=True)))
    assert_identical(abstract.to_plain(abstract.params(model)), model)


def test_an_optimizer_s_state_moves_with_the_parameters():
    """Saved from 4 stages, loaded into 2, the moments included."""
    model = Model(is_stacked=True)
    four, two = make_pipeline(model, 4), make_pipeline(model, 2)
    params: Any = four.params(model)
    _, grads = four.value_and_grad(params, make_batch())
    optimizer: Any = optax.adam(0.1)
    state = optimizer.update(grads, optimizer.init(params), params)[1]
    plain_state = jax.device_get(four.from_pipeline(state))
    assert plain_state[0].mu.blocks["linear"]["kernel"].shape[0] == 5
    moved = two.to_pipeline(plain_state)
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, two.from_pipeline(moved), plain_state)


def test_evaluation_before_between_and_after_training_with_another_batch_size():
    model = Model()
    pipeline, fresh = make_pipeline(model), make_pipeline(model)
    params = pipeline.params(model)
    first, _ = pipeline.evaluate(params, make_batch(3))
    one, grads = pipeline.value_and_grad(params, make_batch(8))
    pipeline.evaluate(params, make_batch(3))
    pipeline.forward(params, make_batch(1))
    two, again = pipeline.value_and_grad(params, make_batch(8))
    last, _ = pipeline.evaluate(params, make_batch(3))
    assert float(one[0]) == float(two[0])
    assert float(first) == float(last)
    jax.tree.map(np.testing.assert_array_equal, again, grads)
    expected, _ = fresh.value_and_grad(params, make_batch(8))
    assert float(expected[0]) == float(one[0])


def test_the_loss_is_on_every_device_and_each_microbatch_by_its_number():
    model = Model()
    pipeline = make_pipeline(model, 4)
    (value, means), _ = pipeline.value_and_grad(pipeline.params(model), make_batch())
    assert value.sharding.is_fully_replicated
    each = loss(model(make_batch()["tokens"]), targets=make_batch()["targets"])
    expected = each.reshape(3, -1).sum(axis=1)
    np.testing.assert_allclose(means.microbatches.loss, expected, rtol=1e-5)


def test_the_loss_may_be_scaled():
    """A scale (as for 16-bit floats) reaches every gradient exactly once, in whatever stage."""
    model = Model()
    plain, scaled = (
        make_pipeline(model, 4),
        make_pipeline(model, 4, loss=lambda logits, *, targets: 8 * loss(logits, targets=targets)),
    )
    params = plain.params(model)
    _, grads = plain.value_and_grad(params, make_batch())
    _, scaled_grads = scaled.value_and_grad(params, make_batch())
    jax.tree.map(
        lambda once, eight: np.testing.assert_allclose(eight, 8 * once, rtol=1e-5, atol=1e-6),
        grads,
        scaled_grads,
    )


class WithStatistics(Model):
    """Holds what a pipeline does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = nnx.BatchStat(jnp.zeros(3))
        self.counts = nnx.Param(jnp.zeros(3, jnp.int32))


class Shared(Model):
    """Two blocks with one kernel."""

    def __init__(self) -> None:
        super().__init__()
        first, second = Block(nnx.Rngs(0)), Block(nnx.Rngs(1))
        second.linear.kernel = first.linear.kernel
        self.blocks = nnx.List([first, second])


class Odd(Model):
    """Any blocks."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.blocks = nnx.List(blocks)


def odd(**options: Any) -> Callable[[], Model]:
    return lambda: Odd(Block(nnx.Rngs(0)), Block(nnx.Rngs(0), **options))


class Misshapen(Model):
    """One block whose parameters do not agree on the number of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Block(nnx.Rngs(0))
        self.blocks.linear.bias = nnx.Param(jnp.zeros(3))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            Model,
            {"blocks": "layers"},
            "Model has no attribute 'layers' (looking for 'layers'); it has embed, blocks, head. "
            "Name the parts of the model with embed=, blocks= and head=",
        ),
        (
            Nested,
            {"blocks": "decoder.layers"},
            "Model has no attribute 'layers' (looking for 'decoder.layers')",
        ),
        (
            WithStatistics,
            {},
            "Found: counts has dtype int32; statistics is a BatchStat. For dropout, take "
            "`keys` as an argument instead of an nnx.Rngs",
        ),
        (
            Shared,
            {},
            "the blocks at 'blocks' share parameters with each other or with the rest of the "
            "model: every block must own its parameters (embedding and head may share theirs)",
        ),
        (
            odd(width=3),
            {},
            "block 1 differs from block 0: ['linear']['bias'] is float32[3] instead of float32[4]; "
            "['linear']['kernel'] is float32[3, 3] instead of float32[4, 4]",
        ),
        (odd(scale=2.0), {}, "block 1 differs from block 0 in its configuration"),
        (Odd, {}, "'blocks' is an empty list: a model needs at least one block"),
        (
            Misshapen,
            {},
            "'blocks' must be a list of modules, or one module whose parameters all have ",
        ),
    ],
    ids=[
        "no such path",
        "no such nested path",
        "variables",
        "shared",
        "shapes",
        "configuration",
        "empty",
        "not stacked",
    ],
)
def test_models_that_do_not_fit(make, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_pipeline(make(), **options)


def test_what_is_no_model():
    with pytest.raises(TypeError, match=re.escape("model must be a flax.nnx.Module; found dict")):
        unchecked(take_apart)({"w": 1})


def test_parameters_of_a_model_of_another_shape():
    pipeline = make_pipeline(Model(is_tied=False))
    message = "the pipeline was made for a model of another shape: ['head']['table'] is missing"
    with pytest.raises(ValueError, match=re.escape(message)):
        pipeline.params(Model(is_tied=True))


def test_a_part_that_asks_for_what_the_batch_lacks():
    model = Model()
    pipeline = make_pipeline(model)
    message = "loss requires 'targets', but the batch has 'tokens'"
    with pytest.raises(ValueError, match=re.escape(message)):
        pipeline.value_and_grad(pipeline.params(model), {"tokens": make_batch()["tokens"]})


def test_a_head_that_is_not_there():
    model = Model()
    pipeline = make_pipeline(model, head="lm_head")
    with pytest.raises(ValueError, match="Model has no attribute 'lm_head'"):
        pipeline.value_and_grad(pipeline.params(model), make_batch())


def test_the_parts_are_ordinary_modules():
    """Nothing in the model knows of pipelines."""
    assert isinstance(Model().embed, Embed)
    assert isinstance(Model().head, Head)
    assert "jaxpipe" not in vars(models)
    assert isinstance(make_pipeline(Model()).params(Model()), Params)
