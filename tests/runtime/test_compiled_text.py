"""What the compiler makes of the loop, for CPUs and for H100s.

Past trials of this loop were right and forty times too slow, since every tick copied every buffer
whole. So the text of the compiled program is read: inside the loop no buffer may be made anew, only
updated in place, and nothing may cross the mesh axis `data`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpipe.lower import Column
from jaxpipe.runtime import FunctionalPipeline, Params, engine, make_mesh
from jaxpipe.runtime.model import PyTree
from tests.runtime.gpu_topology import h100_devices
from tests.runtime.hlo import Computations, Instruction, inside_loops, parse, root
from tests.runtime.toy import LENGTH, WIDTH, toy_batch, toy_model, toy_params

# Programs for machines that are not there can be written to the compilation cache, but not read.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")

NUM_STAGES, NUM_REPLICAS, NUM_LAYERS, NUM_MICROBATCHES = 4, 2, 8, 8
MICROBATCH_SIZE = 2

TARGETS: dict[str, Callable[[], Mesh]] = {
    "cpu": lambda: make_mesh(NUM_STAGES, NUM_REPLICAS),
    "h100": lambda: make_mesh(
        NUM_STAGES, NUM_REPLICAS, devices=h100_devices(NUM_STAGES * NUM_REPLICAS)
    ),
}

# What may have a buffer as its result without making a new one.
IN_PLACE = {
    "bitcast",
    "dynamic-update-slice",
    "fusion-done",  # of a fusion that was judged where it started
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "tuple",
    "while",
}


def make_pipeline(target: str, remat: str) -> FunctionalPipeline:
    return FunctionalPipeline(
        toy_model(NUM_LAYERS),
        mesh=TARGETS[target](),
        num_microbatches=NUM_MICROBATCHES,
        schedule="1f1b",
        remat=remat,
    )


def compiled_text(pipeline: FunctionalPipeline) -> str:
    spec = pipeline.spec

    def shaped(tree: PyTree, spec_: PartitionSpec) -> PyTree:
        sharding = NamedSharding(spec.mesh, spec_)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    params = toy_params(NUM_LAYERS, "float32")
    blocks = jax.eval_shape(spec.layout.to_pipeline, params.blocks)
    batch = toy_batch(NUM_REPLICAS * NUM_MICROBATCHES * MICROBATCH_SIZE, "float32")
    sizes = (pipeline.sizes.num_ticks, NUM_STAGES, len(Column))
    arguments = (
        shaped(jax.ShapeDtypeStruct(sizes, jnp.int32), PartitionSpec(None, "pipe")),
        Params(shaped(blocks, PartitionSpec("pipe")), shaped(params.outer, PartitionSpec())),
        shaped(batch, PartitionSpec("data")),
        None,
    )
    step = jax.jit(engine.value_and_grad(spec, pipeline.sizes))
    text = step.lower(*arguments).compile().as_text()
    assert text is not None
    return text


def buffers_of(pipeline: FunctionalPipeline) -> set[tuple[int, ...]]:
    """The shapes of all rings and of all gradient sums that are rings of layers."""
    sizes, max_layers = pipeline.sizes, pipeline.spec.layout.max_layers
    message = (MICROBATCH_SIZE, LENGTH, WIDTH)
    whole_stage = pipeline.spec.remat.whole_stage
    stashes = (1 if whole_stage else sizes.num_stashes, max_layers)
    return {
        (sizes.num_activations, *message),
        (sizes.num_gradients, *message),
        (sizes.num_stashes, *message),
        (*stashes, *message),
        (*stashes, MICROBATCH_SIZE, LENGTH, 2 * WIDTH),
        (1, max_layers, WIDTH, 2 * WIDTH),
        (1, max_layers, 2 * WIDTH, WIDTH),
    }


def is_in_place(
    instruction: Instruction, computations: Computations, buffers: set[tuple[int, ...]]
) -> bool:
    # A fusion that runs asynchronously lists its operands among its results.
    if instruction.opcode in ("fusion", "fusion-start"):
        made = root(computations, instruction.called[0])
        return not buffers.intersection(made.shapes) or made.opcode in IN_PLACE
    return instruction.opcode in IN_PLACE


@pytest.mark.parametrize("remat", ["none", "selective", "full"])
@pytest.mark.parametrize("target", TARGETS)
def test_no_buffer_is_copied_inside_the_loop(target, remat):
    pipeline = make_pipeline(target, remat)
    computations = parse(compiled_text(pipeline))
    loop = list(inside_loops(computations))
    # The buffers are there, and updated: the parser has not missed the loop.
    updates = [found for found in loop if found.opcode == "dynamic-update-slice"]
    buffers = buffers_of(pipeline)
    assert {shape for found in updates for shape in found.shapes} >= {
        (pipeline.sizes.num_activations, MICROBATCH_SIZE, LENGTH, WIDTH),
        (1, pipeline.spec.layout.max_layers, WIDTH, 2 * WIDTH),
    }
    # Transposed is copied, too: on the H100 a matmul once had its whole buffer transposed.
    in_any_order = {tuple(sorted(shape)) for shape in buffers}
    made_anew = [
        found.line
        for found in loop
        if in_any_order.intersection(tuple(sorted(shape)) for shape in found.shapes)
        and not is_in_place(found, computations, buffers)
    ]
    assert made_anew == []
    # Nor anything else as large as a few slots, whatever its shape.
    largest_value = MICROBATCH_SIZE * LENGTH * 2 * WIDTH
    copies = [found for found in loop if found.opcode in ("copy", "copy-start")]
    large = [
        found.line
        for found in copies
        if max(math.prod(shape) for shape in found.shapes) > largest_value
    ]
    assert large == []


@pytest.mark.parametrize("target", TARGETS)
def test_only_neighbours_talk_inside_the_loop(target):
    """Weight gradients cross `data` once, after the loop, and no message is gathered first."""
    computations = parse(compiled_text(make_pipeline(target, "selective")))
    collectives = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

    def kinds(instructions: list[Instruction]) -> set[str]:
        found = {instruction.opcode.removesuffix("-start") for instruction in instructions}
        return found.intersection(collectives)

    assert kinds(list(inside_loops(computations))) == {"collective-permute"}
    everywhere = [found for each in computations.values() for found in each]
    assert "all-reduce" in kinds(everywhere)
