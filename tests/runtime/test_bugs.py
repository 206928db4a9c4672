"""One test per past fault, with its story."""

import jax
import jax.numpy as jnp

from jaxpipe.runtime import FunctionalPipeline, make_mesh
from tests.runtime.toy import toy_batch, toy_model, toy_params


def test_a_pipeline_first_used_inside_jit_can_be_used_outside_later():
    """The table was put on the devices when first needed, and kept.

    Where that was inside `jax.jit`, what was kept was a tracer, and every later call outside
    failed with an UnexpectedTracerError.
    """
    pipeline = FunctionalPipeline(toy_model(2), mesh=make_mesh(2), num_microbatches=2)
    params = pipeline.to_pipeline(toy_params(2, "float32"))
    batch = toy_batch(4, "float32")
    (inside, _), _ = jax.jit(pipeline.value_and_grad)(params, batch)
    (outside, _), _ = pipeline.value_and_grad(params, batch)
    assert jnp.array_equal(inside, outside)
