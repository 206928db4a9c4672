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


def test_parameters_move_from_one_pipeline_to_another():
    """Parameters in layer order still lay on the devices of the pipeline they came from.

    Taking them from four stages to two failed with "incompatible devices", without a way out.
    """
    many, few = (
        FunctionalPipeline(toy_model(4), mesh=make_mesh(stages), num_microbatches=2)
        for stages in (4, 2)
    )
    original = toy_params(4, "float32")
    there = few.to_pipeline(many.from_pipeline(many.to_pipeline(original)))
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(there)} == {2}
    back = many.from_pipeline(many.to_pipeline(few.from_pipeline(there)))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, back, original))
