"""What token slices save: bytes that a step of Seq1F1B keeps, beside those of 1F1B.

    python benchmarks/sequence_memory.py
    python benchmarks/sequence_memory.py --target h100    # with jax-cuda13-plugin, no GPU needed

A GPT of 8 layers on P = 4 stages, 8 microbatches of 2 sequences of 512 tokens, the default remat.
Seq1F1B keeps (P + k - 1) / k microbatches on its first device where 1F1B keeps P (Sun et al., arXiv
2406.03488). `kept` is what stays between forward and backward, stashes and the states of attention
(keys and values), by the shapes of the loop's buffers; `temporaries` is what the compiler reports
for the whole step, which also has the workspace of one action, shorter for a slice as well.
"""

import argparse
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding

from jaxpipe import Pipeline, make_mesh
from jaxpipe.aot import parse_topology
from models import GPT, GPTConfig

NUM_STAGES, NUM_MICROBATCHES, MICROBATCH_SIZE, LENGTH = 4, 8, 2, 512
CONFIG = GPTConfig(vocab_size=256, max_sequence_length=LENGTH, num_layers=8, width=192, num_heads=4)
# The last one has unequal slices: a slot is as long as the longest.
SLICES: tuple[int | tuple[int, ...], ...] = (1, 2, 4, 8, (152, 128, 120, 112))


def token_loss(logits: jax.Array, *, targets: jax.Array) -> jax.Array:
    """Cross-entropy of every token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def measure(target: str, slices: int | tuple[int, ...]) -> tuple[int, int, int]:
    """Bytes of stashes, of states, and of all temporaries."""
    devices = parse_topology("h100:1x1x4").devices() if target == "h100" else None
    pipeline = Pipeline(
        nnx.eval_shape(lambda: GPT(CONFIG, rngs=nnx.Rngs(0))),
        token_loss,
        mesh=make_mesh(NUM_STAGES, devices=devices),
        schedule="1f1b" if slices == 1 else "seq1f1b",
        num_microbatches=NUM_MICROBATCHES,
        slices=slices,
    )
    tokens = jax.ShapeDtypeStruct(
        (NUM_MICROBATCHES * MICROBATCH_SIZE, LENGTH),
        jnp.int32,
        sharding=NamedSharding(pipeline.spec.mesh, pipeline.spec.batch_spec),
    )
    batch = {"tokens": tokens, "targets": tokens}
    plan = pipeline.plan(pipeline.param_shapes, batch).memory
    step = jax.jit(pipeline.value_and_grad).lower(pipeline.param_shapes, batch).compile()
    memory = step.memory_analysis()
    assert memory is not None
    return plan.stashes, plan.states, memory.temp_size_in_bytes


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=("cpu", "h100"), default="cpu")
    target = parser.parse_args().target
    jax.config.update("jax_num_cpu_devices", NUM_STAGES)
    found = {slices: measure(target, slices) for slices in SLICES}
    whole = sum(found[1][:2])
    print(f"compiled for {target}, MiB a device")
    print(
        f"{'slices':<20}{'stash':>8}{'state':>8}{'kept / 1f1b':>14}{'paper':>8}{'temporaries':>13}"
    )
    for slices, (stash, state, temporaries) in found.items():
        number = slices if isinstance(slices, int) else len(slices)
        paper = (NUM_STAGES + number - 1) / number / NUM_STAGES
        name = str(slices) if isinstance(slices, int) else " ".join(map(str, slices))
        print(
            f"{name:<20}{stash / 2**20:>8.1f}{state / 2**20:>8.1f}"
            f"{(stash + state) / whole:>14.3f}{paper:>8.3f}{temporaries / 2**20:>13.1f}"
        )


if __name__ == "__main__":
    main()
