"""Layers are weighed, and shared out as evenly as can be."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxpipe import Sequential
from jaxpipe.nn import balance, pop, stash
from tests.nn.convolutions import images, small_unet


def linear(inputs: int, outputs: int) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, use_bias=False, rngs=nnx.Rngs(0))


def make_model() -> Sequential:
    """Layers of 0, 12, 0, 64, 0, 16 parameters."""
    return Sequential(
        [
            stash("a"),
            linear(4, 3),
            lambda x: jnp.repeat(x, 4, -1)[..., :8],
            linear(8, 8),
            pop("a", lambda x, skip: x[..., :4] + skip),
            linear(4, 4),
        ]
    )


def test_by_count():
    assert balance.by_count(make_model(), 4) == (2, 2, 1, 1)
    assert balance.by_count(make_model(), 2, speeds=[2, 1]) == (4, 2)


def test_by_parameters():
    assert balance.by_parameters(make_model(), 2) == (5, 1)
    abstract = nnx.eval_shape(make_model)
    assert balance.by_parameters(abstract, 3) == balance.by_parameters(make_model(), 3)
    assert max(balance.by_parameters(make_model(), 6)) == 1


def test_by_type():
    assert balance.by_type(make_model(), 3, "Linear") in {
        (3, 1, 2),
        (2, 2, 2),
        (3, 2, 1),
        (2, 3, 1),
    }
    with pytest.raises(ValueError, match="3 layers match 'Linear', too few for 4 stages"):
        balance.by_type(make_model(), 4, "Linear")
    with pytest.raises(ValueError, match="the layers are of the types .*Linear"):
        balance.by_type(make_model(), 2, "Conv")


def test_by_weights_of_ones_own():
    assert balance.by_weights([1, 1, 1, 9], 2) == (3, 1)
    with pytest.raises(ValueError, match="2 layers can't fill 3 stages"):
        balance.by_weights([1, 2], 3)


def test_by_time_knows_skips(monkeypatch):
    """Every layer runs alone; one that takes nearly all of the time shares its stage with none."""
    model = Sequential([jnp.sin, stash("a"), jnp.tanh, pop("a", jnp.add), jnp.cos])
    batch = {"inputs": jax.ShapeDtypeStruct((4, 8), "float32")}
    found = balance.measure_layers(model, batch, repeats=3)
    assert len(found) == 5
    assert min(found) > 0
    assert sum(balance.by_time(model, batch, 3, repeats=3)) == 5
    monkeypatch.setattr(balance, "measure_layers", lambda *_, **__: [1.0, 1.0, 40.0, 1.0, 1.0])
    assert balance.by_time(model, batch, 3) == (2, 1, 2)


def test_by_memory_counts_parameters_and_what_the_backward_needs():
    model, batch = small_unet("float32"), images(4, "float32")
    parameters = balance.by_memory(model, batch, 4, optimizer_factor=1e6)
    assert parameters[0] == 8  # the convolution in the middle has most of them
    activations = balance.by_memory(model, batch, 4, microbatches=1000)
    assert activations[-1] == 1  # the last convolution reads more pixels than any other
    assert sum(parameters) == sum(activations) == len(model)
