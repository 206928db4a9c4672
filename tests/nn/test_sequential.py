"""A Sequential of any layers becomes a pipeline and comes back."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from jaxpipe import Sequential, SequentialPipeline, make_mesh
from jaxpipe.checkpoint import Checkpoints
from jaxpipe.nn import balance, from_linen, pop, stash, with_params, with_skips
from tests.nn.convolutions import images, pixel_loss, small_unet
from tests.runtime.as_users_call import unchecked
from tests.runtime.closeness import FLOAT64, assert_close


def squares(outputs: jax.Array, *, targets: jax.Array) -> jax.Array:
    return jnp.sum((outputs - targets) ** 2, -1)


def make_pipeline(model: Sequential, num_stages: int = 2, **options: Any) -> SequentialPipeline:
    options = {"num_microbatches": 3, "loss": squares, **options}
    return SequentialPipeline(model, options.pop("loss"), mesh=make_mesh(num_stages), **options)


def pairs(num_examples: int = 6, width: int = 3) -> dict[str, jax.Array]:
    random = np.random.default_rng(0)
    return {
        "inputs": jnp.asarray(random.normal(size=(num_examples, width)), "float32"),
        "targets": jnp.asarray(random.normal(size=(num_examples, 2)), "float32"),
    }


def linear(inputs: int, outputs: int) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, rngs=nnx.Rngs(inputs))


@pytest.mark.parametrize(
    ("schedule", "num_stages", "remat"),
    [("1f1b", 4, "selective"), ("gpipe", 3, "full"), ("zb_h1", 2, "none")],
)
def test_gradients_are_those_of_the_model_itself(float64, schedule, num_stages, remat):
    """Not even the library's own reference is involved: Flax alone says what is right."""
    model, batch = small_unet(), images(7)
    structure, state = nnx.split(model)

    def mean_loss(state: nnx.State) -> jax.Array:
        outputs = nnx.merge(structure, state)(batch["inputs"])
        return jnp.mean(pixel_loss(outputs, labels=batch["labels"]))

    expected, expected_grads = jax.jit(jax.value_and_grad(mean_loss))(state)
    pipeline = make_pipeline(
        model, num_stages, loss=pixel_loss, schedule=schedule, remat=remat, num_microbatches=4
    )
    (loss, _), grads = pipeline.value_and_grad(pipeline.params(model), batch)
    assert_close(loss, expected, FLOAT64)
    found = pipeline.from_pipeline(grads).blocks
    wanted = nnx.to_pure_dict(expected_grads)["layers"]
    assert_close(found, {name: tree for name, tree in wanted.items() if tree}, FLOAT64)
    outputs = pipeline.forward(pipeline.params(model), images(3))
    assert_close(outputs, model(images(3)["inputs"]), FLOAT64)


def test_there_and_back_is_the_same_model():
    model = small_unet("float32")
    pipeline = make_pipeline(model, 4, loss=pixel_loss)
    back: Any = pipeline.to_plain(pipeline.params(model))
    (structure, state), (expected_structure, expected_state) = nnx.split(back), nnx.split(model)
    assert structure == expected_structure
    jax.tree.map(np.testing.assert_array_equal, state, expected_state)


def test_layers_are_named_and_found_in_model_order():
    model = Sequential({"first": linear(3, 8), "act": jnp.tanh, "last": linear(8, 2)})
    assert model.names == ("first", "act", "last")
    assert len(model) == 3
    assert model["last"] is model[-1] is list(model)[2]
    assert model["act"] is jnp.tanh
    with pytest.raises(KeyError, match="there is no layer 'middle'; there are first, act, last"):
        model["middle"]
    pipeline = make_pipeline(model, layers_per_stage=[2, 1])
    by_layer = pipeline.from_pipeline(pipeline.params(model)).blocks
    assert set(by_layer) == {"first", "last"}
    assert by_layer["first"]["kernel"].shape == (3, 8)


class Several(NamedTuple):
    """What the layers of the test below hand on."""

    x: jax.Array
    nothing: None
    name: str
    takes_root: bool
    scale: float
    mask: Any


def test_anything_may_travel_between_layers():
    """Named tuples stay what they are; what is no array reaches the next layer as it was."""

    def start(x: jax.Array) -> Several:
        return Several(x, None, "three", True, 2.0, np.array([True, False, True]))

    def check(several: Several) -> Several:
        assert isinstance(several, Several)
        assert (several.nothing, several.name, several.takes_root) == (None, "three", True)
        assert isinstance(several.scale, float)
        assert several.mask.dtype == bool
        return several

    def end(several: Several) -> jax.Array:
        x = jnp.where(several.mask, several.x, 0) * several.scale
        return jnp.sqrt(jnp.abs(x) + 1) if several.takes_root else x

    model = Sequential([linear(3, 3), start, check, check, end, linear(3, 2)])
    pipeline, batch = make_pipeline(model, 4), pairs()
    params = pipeline.params(model)
    assert_close(pipeline.forward(params, batch), model(batch["inputs"]), 1e-5)
    (_, _), grads = pipeline.value_and_grad(params, batch)
    (_, _), expected = pipeline.plain_value_and_grad(params, batch)
    assert_close(grads, expected, 1e-5)


def test_linen_modules_and_functions_with_parameters():
    class Block(linen.Module):
        width: int

        @linen.compact
        def __call__(self, x: jax.Array, scales: jax.Array | None = None) -> jax.Array:
            x = linen.Dense(self.width)(x)
            return x if scales is None else x * scales

    block = Block(4)
    variables = block.init(jax.random.key(0), jnp.ones((1, 3)))
    scaled = with_params(lambda params, x, scales: x @ params[0] * scales, [jnp.ones((4, 2))])
    model = Sequential({"linen": from_linen(block, variables), "plain": scaled})
    batch = pairs() | {"scales": jnp.full((6, 1), 0.5)}
    made: Any = block.apply(variables, batch["inputs"], batch["scales"])
    expected = made @ jnp.ones((4, 2)) * 0.5
    pipeline = make_pipeline(model)
    params = pipeline.params(model)
    assert_close(model(batch["inputs"], batch=batch), expected, 1e-6)
    assert_close(pipeline.forward(params, batch), expected, 1e-6)
    (_, _), grads = pipeline.value_and_grad(params, batch)
    (_, _), wanted = pipeline.plain_value_and_grad(params, batch)
    assert_close(grads, wanted, 1e-5)


def test_random_layers_draw_the_same_wherever_they_lie():
    def drop(x: jax.Array, keys: jax.Array) -> jax.Array:
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, x.shape[1:]))(keys)
        return jnp.where(kept, x, 0)

    model = Sequential([linear(3, 16), drop, jnp.tanh, linear(16, 2), drop])
    batch, losses = pairs(), []
    for num_stages, counts in ((1, [5]), (2, [1, 4]), (2, [4, 1]), (4, [1, 1, 1, 2])):
        pipeline = make_pipeline(model, num_stages, layers_per_stage=counts)
        params = pipeline.params(model)
        (loss, _), _ = pipeline.value_and_grad(params, batch, jax.random.key(0))
        losses.append(float(loss))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


def test_a_checkpoint_fits_any_balance(tmp_path):
    model, batch = small_unet("float32"), images(6, "float32")
    optimizer: Any = optax.adam(1e-2)

    def two_steps(pipeline: SequentialPipeline, state: Any) -> tuple[Any, float]:
        params, moments = state
        loss: Any = None
        for _ in range(2):
            (loss, _), grads = pipeline.value_and_grad(params, batch)
            updates, moments = optimizer.update(grads, moments, params)
            params = jax.tree.map(jnp.add, params, updates)
        return (params, moments), float(loss)

    one = make_pipeline(model, 2, loss=pixel_loss)
    params = one.params(model)
    state, _ = two_steps(one, (params, optimizer.init(params)))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, state, pipeline=one)
    other = make_pipeline(
        model,
        4,
        loss=pixel_loss,
        layers_per_stage=balance.by_parameters(model, 4),
        schedule="gpipe",
    )
    like = jax.jit(lambda params: (params, optimizer.init(params)))(other.params(model))
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore(2, like, pipeline=other)
    _, expected = two_steps(one, state)
    _, found = two_steps(other, restored)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        ([], ValueError, "needs at least one layer"),
        ({"a.b": jnp.tanh}, ValueError, "without '/' and '.'; found 'a.b'"),
        ([3], TypeError, "layer 0 must be an NNX module, a function"),
        ([nnx.Linear], TypeError, "layer 0 must be an NNX module, a function"),
        ([jnp.tanh, linen.Dense(3)], TypeError, r"layer 1 is a Linen module.*from_linen"),
        ([stash("a")], ValueError, "'a' is stashed by layer 0 and never popped"),
    ],
)
def test_layers_that_are_refused(layers, error, message):
    with pytest.raises(error, match=message):
        unchecked(Sequential)(layers)


def test_shared_parameters_are_refused():
    shared = linear(3, 3)
    with pytest.raises(ValueError, match="layers 0 and 2 share parameters"):
        Sequential([shared, jnp.tanh, shared])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nnx.BatchNorm(3, rngs=nnx.Rngs(0)), "BatchStat"),
        (nnx.Dropout(0.5, rngs=nnx.Rngs(0)), "take `keys` as an argument"),
        (with_params(lambda p, x: x, {"n": jnp.arange(3)}), "has dtype int32"),
    ],
)
def test_variables_that_no_gradient_trains_are_refused(layer, message):
    with pytest.raises(ValueError, match=message):
        make_pipeline(Sequential([linear(3, 3), layer]))


def test_mistakes_in_a_call_are_named():
    model = Sequential([linear(3, 3), lambda x, mask: x * mask])
    pipeline = make_pipeline(model)
    params = pipeline.params(model)
    with pytest.raises(ValueError, match="layer 1 requires 'mask', but the batch has"):
        pipeline.value_and_grad(params, pairs())
    with pytest.raises(ValueError, match=r"gets the entry 'inputs' of the batch, but .* 'x'"):
        pipeline.value_and_grad(params, {"x": jnp.ones((6, 3))})
    with pytest.raises(ValueError, match="made for a model of another shape"):
        pipeline.params(Sequential([linear(3, 4), jnp.tanh]))
    with pytest.raises(TypeError, match=re.escape("takes a jaxpipe.Sequential; found Linear")):
        unchecked(SequentialPipeline.__init__)(
            object.__new__(SequentialPipeline), linear(3, 3), squares, mesh=None, num_microbatches=2
        )
    wrong = Sequential([with_skips(lambda x: x, stash=["a"]), pop("a", jnp.add)])
    with pytest.raises(ValueError, match="layer 0 stashes a, so it must return its output and a"):
        make_pipeline(wrong).value_and_grad(make_pipeline(wrong).params(wrong), pairs())
