"""Contract 2: a step takes the memory that was predicted, however many microbatches it has."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding

from jaxpipe import Pipeline, make_mesh
from jaxpipe.runtime.memory import MemoryPlan
from models import GPT, GPTConfig
from tests.nn.token_loss import token_loss
from tests.runtime.gpu_topology import h100_devices

# Programs for machines that are not there can be written to the compilation cache, but not read.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")

CONFIG = GPTConfig(vocab_size=256, max_sequence_length=128, num_layers=8, width=192, num_heads=4)
NUM_STAGES, MICROBATCH_SIZE = 4, 4


@functools.cache
def predicted_and_compiled(
    target: str, schedule: str, num_microbatches: int, remat: str
) -> tuple[MemoryPlan, int]:
    """The prediction, and the compiler's own count of temporary bytes."""
    devices = h100_devices(NUM_STAGES) if target == "h100" else None
    pipeline = Pipeline(
        nnx.eval_shape(lambda: GPT(CONFIG, rngs=nnx.Rngs(0))),
        token_loss,
        mesh=make_mesh(NUM_STAGES, devices=devices),
        schedule=schedule,
        num_microbatches=num_microbatches,
        remat=remat,
    )
    tokens = jax.ShapeDtypeStruct(
        (num_microbatches * MICROBATCH_SIZE, CONFIG.max_sequence_length),
        jnp.int32,
        sharding=NamedSharding(pipeline.spec.mesh, pipeline.spec.batch_spec),
    )
    batch = {"tokens": tokens, "targets": tokens}
    plan = pipeline.plan(pipeline.param_shapes, batch)
    step = jax.jit(pipeline.value_and_grad).lower(pipeline.param_shapes, batch).compile()
    compiled = step.memory_analysis()
    assert compiled is not None
    return plan.memory, compiled.temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h100"])
@pytest.mark.parametrize(
    ("schedule", "remat"),
    [("1f1b", "selective"), ("1f1b", "none"), ("1f1b", "full"), ("gpipe", "selective")],
)
def test_a_step_takes_the_memory_that_was_predicted(target, schedule, remat):
    predicted, compiled = predicted_and_compiled(target, schedule, 8, remat)
    assert 0.9 <= compiled / predicted.temporaries <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_1f1b_takes_as_much_for_many_microbatches_as_for_few(target):
    few_predicted, few = predicted_and_compiled(target, "1f1b", 8, "selective")
    many_predicted, many = predicted_and_compiled(target, "1f1b", 64, "selective")
    assert many / few <= 1.02
    assert many_predicted == few_predicted


def test_only_the_stashes_and_gradients_of_gpipe_grow_with_the_microbatches():
    few, _ = predicted_and_compiled("cpu", "gpipe", 8, "selective")
    one_f_one_b, _ = predicted_and_compiled("cpu", "1f1b", 8, "selective")
    differing = {
        field.name
        for field in dataclasses.fields(MemoryPlan)
        if getattr(few, field.name) != getattr(one_f_one_b, field.name)
    }
    assert differing == {"stashes", "received_gradients"}
    # 8 microbatches against the 4 that 1F1B keeps on its first device.
    assert few.stashes == 2 * one_f_one_b.stashes
