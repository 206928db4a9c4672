"""The circular forward is an ordinary function of its parameters: values, gradients, and `vmap`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime import FunctionalPipeline, Params, circular, make_mesh
from jaxpipe.runtime.layout import Layout, split_layers
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.schedule import loop_placement
from tests.runtime import toy
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit
from tests.runtime.reference import key_of, reference, reference_outputs, reference_sums
from tests.runtime.toy import toy_batch, toy_model, toy_params

NUM_LAYERS, NUM_EXAMPLES = 9, 10


def make_spec(
    mesh: tuple[int, int], num_microbatches: int, remat: str, num_chunks: int = 1
) -> PipelineSpec:
    spec = FunctionalPipeline(
        toy_model(NUM_LAYERS),
        mesh=make_mesh(*mesh),
        num_microbatches=num_microbatches,
        remat=remat,
    ).spec
    placement = loop_placement(mesh[0], num_chunks)
    layers = split_layers(NUM_LAYERS, placement.num_stages)
    return dataclasses.replace(spec, layout=Layout(placement, layers, spec.num_devices))


def place(spec: PipelineSpec) -> Params:
    params = toy_params(NUM_LAYERS)
    return Params(spec.layout.to_pipeline(params.blocks), params.outer)


# Mesh, microbatches, recomputation, chunks, whether there is dropout.
CASES = [
    ((1, 1), 1, "none", 1, False),
    ((1, 1), 3, "selective", 2, True),
    ((2, 1), 5, "full", 1, True),
    ((3, 1), 2, "selective", 1, False),
    ((4, 1), 3, "selective", 1, True),
    ((8, 1), 16, "none", 1, False),
    ((2, 1), 3, "none", 3, False),
    ((4, 1), 8, "selective", 2, False),
    ((1, 2), 2, "none", 1, True),
    ((2, 2), 3, "selective", 2, False),
    ((4, 2), 5, "full", 1, False),
]


@pytest.mark.parametrize(("mesh", "num_microbatches", "remat", "num_chunks", "drops"), CASES)
def test_loss_and_gradients(float64, mesh, num_microbatches, remat, num_chunks, drops):
    spec = make_spec(mesh, num_microbatches, remat, num_chunks)
    seed = 3 if drops else None
    batch = toy_batch(NUM_EXAMPLES)

    def loss(params):
        means = circular.loss(spec)(params, batch, key_of(seed))
        return means.loss, means

    (_, means), grads = quick_jit(jax.value_and_grad(loss, has_aux=True))(place(spec))
    expected_means, expected_grads = reference(NUM_LAYERS, NUM_EXAMPLES, seed)
    assert_close(
        Params(spec.layout.from_pipeline(grads.blocks), grads.outer), expected_grads, FLOAT64
    )
    assert_close(
        (means.loss, means.weight, means.metrics),
        (expected_means.loss, expected_means.weight, expected_means.metrics),
        FLOAT64,
    )
    sums = reference_sums(NUM_LAYERS, NUM_EXAMPLES, seed, num_microbatches, mesh[1])
    assert_close(means.microbatches, sums, FLOAT64)


@pytest.mark.parametrize(
    ("mesh", "num_microbatches", "num_chunks"), [((4, 1), 3, 2), ((2, 2), 5, 1)]
)
def test_outputs_come_in_the_order_of_the_examples(float64, mesh, num_microbatches, num_chunks):
    spec = make_spec(mesh, num_microbatches, "none", num_chunks)
    run = quick_jit(circular.forward(spec))
    outputs = run(place(spec), toy_batch(NUM_EXAMPLES), None)
    assert_close(outputs, reference_outputs(NUM_LAYERS, NUM_EXAMPLES, None), FLOAT64)


def test_gradients_through_outputs_and_vmap_over_directions(float64):
    """`forward` under `jax.grad`, `jax.jvp` and `jax.vmap`, as any function."""
    spec = make_spec((2, 1), 3, "none")
    params, batch = place(spec), toy_batch(4)

    def total(scale):
        outer = {**params.outer, "gain": params.outer["gain"] * scale}
        outputs = circular.forward(spec)(Params(params.blocks, outer), batch, None)
        return jnp.sum(outputs**2)

    one = jnp.ones((), "float64")
    value, slope = quick_jit(jax.value_and_grad(total))(one)
    # Outputs are linear in the gain, so the sum of squares is quadratic in the scale.
    np.testing.assert_allclose(slope, 2 * value, rtol=FLOAT64)
    _, tangent = quick_jit(lambda scale: jax.jvp(total, (scale,), (one,)))(one)
    np.testing.assert_allclose(tangent, slope, rtol=FLOAT64)
    scales = jnp.array([0.5, 1.0, 2.0])
    values = quick_jit(jax.vmap(total))(scales)
    np.testing.assert_allclose(values, value * scales**2, rtol=FLOAT64)


def test_a_branch_that_devices_take_apart_keeps_the_gradients_of_shared_weights(float64):
    """A `cond` on a predicate that differs between devices once lost gradients silently.

    JAX (issue 40823) drops them for operands that it takes to be the same on all devices. Embedding
    and head are such operands here: each runs on one device, under a `cond`, and both read the
    shared table, whose gradient is the sum of both.
    """
    spec, batch = make_spec((4, 1), 2, "none"), toy_batch(4)

    def loss(params):
        return circular.loss(spec)(params, batch, None).loss

    def loss_without_embedding(params):
        # The same table in the head alone: its gradient must be another.
        model = toy_model(
            NUM_LAYERS,
            embed=lambda outer, batch, keys: toy.embed(jax.lax.stop_gradient(outer), batch, keys),
        )
        other = dataclasses.replace(spec, model=model)
        return circular.loss(other)(params, batch, None).loss

    params = place(spec)
    whole = quick_jit(jax.grad(loss))(params).outer["table"]
    head = quick_jit(jax.grad(loss_without_embedding))(params).outer["table"]
    _, expected = reference(NUM_LAYERS, 4, None)
    assert_close(whole, expected.outer["table"], FLOAT64)
    assert float(jnp.abs(whole - head).max()) > 1e-3
    assert float(jnp.abs(head).max()) > 1e-3
