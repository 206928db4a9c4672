"""Contract 2: a step takes the memory that was predicted, however many microbatches it has."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding

from jaxpipe import Pipeline, make_mesh
from jaxpipe.lower import Pool, lower
from jaxpipe.runtime.alone import device_shapes
from jaxpipe.runtime.memory import MemoryPlan, num_bytes
from jaxpipe.schedule import make_schedule
from models import GPT, GPTConfig
from tests.nn.token_loss import token_loss
from tests.runtime.gpu_topology import h100_devices
from tests.runtime.test_compiled_text import check_no_ring_is_copied, large_rings

# Programs for machines that are not there can be written to the compilation cache, but not read.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")

CONFIG = GPTConfig(vocab_size=256, max_sequence_length=128, num_layers=8, width=192, num_heads=4)
NUM_STAGES, MICROBATCH_SIZE = 4, 4


def make_pipeline(
    target: str, schedule: str, num_microbatches: int, remat: str, slices: int | None
) -> Pipeline:
    devices = h100_devices(NUM_STAGES) if target == "h100" else None
    return Pipeline(
        nnx.eval_shape(lambda: GPT(CONFIG, rngs=nnx.Rngs(0))),
        token_loss,
        mesh=make_mesh(NUM_STAGES, devices=devices),
        schedule=schedule,
        num_microbatches=num_microbatches,
        remat=remat,
        slices=slices,
    )


def compile_step(pipeline: Pipeline) -> tuple[dict[str, Any], jax.stages.Compiled]:
    """The shapes of a batch, and the step compiled for it."""
    tokens = jax.ShapeDtypeStruct(
        (pipeline.spec.num_microbatches * MICROBATCH_SIZE, CONFIG.max_sequence_length),
        jnp.int32,
        sharding=NamedSharding(pipeline.spec.mesh, pipeline.spec.batch_spec),
    )
    batch = {"tokens": tokens, "targets": tokens}
    step = jax.jit(pipeline.value_and_grad).lower(pipeline.param_shapes, batch)
    return batch, step.compile()


@functools.cache
def predicted_and_compiled(
    target: str, schedule: str, num_microbatches: int, remat: str, slices: int | None = None
) -> tuple[MemoryPlan, int]:
    """The prediction, and the compiler's own count of temporary bytes."""
    pipeline = make_pipeline(target, schedule, num_microbatches, remat, slices)
    batch, step = compile_step(pipeline)
    compiled = step.memory_analysis()
    assert compiled is not None
    plan = pipeline.plan(pipeline.param_shapes, batch)
    return plan.memory, compiled.temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h100"])
@pytest.mark.parametrize(
    ("schedule", "remat", "slices"),
    [
        ("1f1b", "selective", None),
        ("1f1b", "none", None),
        ("1f1b", "full", None),
        ("1f1b", "except_last", None),
        ("gpipe", "selective", None),
        ("zb_h1", "selective", None),
        ("zbv", "selective", None),
        ("chimera", "selective", None),
        ("interleaved_1f1b", "selective", None),
        ("seq1f1b", "selective", 4),
        ("seq1f1b", "full", 2),
        ("zb_h1", "selective", 2),
    ],
)
def test_a_step_takes_the_memory_that_was_predicted(target, schedule, remat, slices):
    predicted, compiled = predicted_and_compiled(target, schedule, 8, remat, slices)
    assert 0.9 <= compiled / predicted.temporaries <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_1f1b_takes_as_much_for_many_microbatches_as_for_few(target):
    few_predicted, few = predicted_and_compiled(target, "1f1b", 8, "selective")
    many_predicted, many = predicted_and_compiled(target, "1f1b", 64, "selective")
    assert many / few <= 1.02
    assert many_predicted == few_predicted


@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_zb_h1_keeps_no_more_than_1f1b(num_devices):
    """As many stashes as the first device of 1F1B, and what W waits for in as many slots."""
    split, whole = (
        lower(make_schedule(name, num_devices, 4 * num_devices)) for name in ("zb_h1", "1f1b")
    )
    stashes = whole.max_slots(Pool.STASH)
    assert stashes == num_devices
    assert split.max_slots(Pool.STASH) == stashes
    assert split.max_slots(Pool.WEIGHT_STASH) == stashes
    assert split.max_slots(Pool.WEIGHT_GRADIENT) <= stashes


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


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_no_buffer_is_copied_for_slices(target):
    pipeline = make_pipeline(target, "seq1f1b", 8, "selective", 4)
    batch, step = compile_step(pipeline)
    state = device_shapes(pipeline.spec, pipeline.sizes, pipeline.param_shapes, batch).state
    buffers = large_rings(state, MICROBATCH_SIZE * CONFIG.max_sequence_length * CONFIG.width)
    assert len(buffers) >= 3
    check_no_ring_is_copied(step, buffers, state.states[0].shape)


@pytest.mark.parametrize("num_slices", [1, 2, 4, 8])
def test_seq1f1b_keeps_the_tokens_of_its_slices_in_flight(num_slices):
    """(P + k - 1) / k microbatches where 1F1B keeps P (Seq1F1B, arXiv 2406.03488, section 4.1).

    Keys and values are kept once, as states; together with them a slice keeps its share of what a
    microbatch keeps.
    """
    whole = make_pipeline("cpu", "1f1b", 8, "selective", None)
    cut = make_pipeline("cpu", "seq1f1b", 8, "selective", num_slices)
    tokens = jax.ShapeDtypeStruct((8 * MICROBATCH_SIZE, CONFIG.max_sequence_length), jnp.int32)
    batch = {"tokens": tokens, "targets": tokens}
    kept = []
    for pipeline in (whole, cut):
        shapes = device_shapes(pipeline.spec, pipeline.sizes, pipeline.param_shapes, batch)
        kept.append(num_bytes((shapes.state.stashes, shapes.state.states)))
    assert kept[1] / kept[0] == (NUM_STAGES + num_slices - 1) / num_slices / NUM_STAGES
