"""Contract 2 for unlike layers: the memory that was predicted, and no ring is copied."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding

from jaxpipe import Sequential, SequentialPipeline, make_mesh
from jaxpipe.nn import in_namespace, pop, stash
from jaxpipe.runtime.alone import device_shapes
from tests.nn.convolutions import beside, double, halve, pixel_loss
from tests.runtime.gpu_topology import h100_devices
from tests.runtime.test_compiled_text import check_no_ring_is_copied, large_rings

# Programs for machines that are not there can be written to the compilation cache, but not read.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")

NUM_STAGES, NUM_MICROBATCHES, MICROBATCH_SIZE, PIXELS, CHANNELS = 4, 8, 8, 64, 16


def large_unet() -> Sequential:
    """Two levels, with skips that are larger than anything else that crosses a border."""
    rngs = nnx.Rngs(0)

    def conv(inputs: int, outputs: int, size: int = 3) -> nnx.Conv:
        return nnx.Conv(inputs * CHANNELS or 1, outputs, (size, size), rngs=rngs)

    down = in_namespace("inner", [conv(1, 2 * CHANNELS), jax.nn.relu, stash("skip"), halve])
    up = in_namespace("inner", [double, pop("skip", beside), conv(6, 2 * CHANNELS), jnp.tanh])
    return Sequential(
        [
            conv(0, CHANNELS),
            jnp.tanh,
            stash("skip"),
            halve,
            *down,
            conv(2, 4 * CHANNELS),
            jax.nn.relu,
            *up,
            double,
            pop("skip", beside),
            conv(3, CHANNELS),
            jnp.tanh,
            conv(1, 3, 1),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "schedule", "remat"),
    [("cpu", "1f1b", "full"), ("h100", "1f1b", "selective"), ("h100", "zb_h1", "selective")],
)
def test_a_step_takes_the_memory_that_was_predicted(target, schedule, remat):
    devices = h100_devices(NUM_STAGES) if target == "h100" else None
    pipeline = SequentialPipeline(
        nnx.eval_shape(large_unet),
        pixel_loss,
        mesh=make_mesh(NUM_STAGES, devices=devices),
        num_microbatches=NUM_MICROBATCHES,
        schedule=schedule,
        remat=remat,
    )
    sharding = NamedSharding(pipeline.spec.mesh, pipeline.spec.batch_spec)
    shape = (NUM_MICROBATCHES * MICROBATCH_SIZE, PIXELS, PIXELS)
    batch = {
        "inputs": jax.ShapeDtypeStruct((*shape, 1), jnp.float32, sharding=sharding),
        "labels": jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding),
    }
    compiled = jax.jit(pipeline.value_and_grad).lower(pipeline.param_shapes, batch).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    predicted = pipeline.plan(pipeline.param_shapes, batch).memory.temporaries
    assert 0.9 <= memory.temp_size_in_bytes / predicted <= 1.1
    state = device_shapes(pipeline.spec, pipeline.sizes, pipeline.param_shapes, batch).state
    rings = large_rings(state, 100_000)
    assert state.stashes[0].shape in rings
    check_no_ring_is_copied(compiled, rings, state.block_gradients[0].shape)
