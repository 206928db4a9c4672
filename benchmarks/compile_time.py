"""How long a step takes to compile: not longer for more microbatches, nor for more devices.

    python benchmarks/compile_time.py

Tracing and compiling from nothing, without a cache, for simulated CPU devices; medians of a few
repeats that alternate between the sizes. The loop's body is compiled once whatever the size; only
the partitioning over more devices takes XLA a little longer.
"""

import argparse
import os
import platform
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpipe import Pipeline, make_mesh
from models import GPT, GPTConfig

NUM_MICROBATCHES = (8, 16, 32, 64, 128, 256)
NUM_DEVICES = (2, 4, 8, 16)
CONFIG = GPTConfig(vocab_size=256, max_sequence_length=64, num_layers=16, width=64, num_heads=4)


def loss(logits: jax.Array, *, targets: jax.Array) -> jax.Array:
    """Cross entropy of every token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def compile_seconds(schedule: str, num_devices: int, num_microbatches: int) -> float:
    """Wall time of tracing and compiling a step."""
    pipeline = Pipeline(
        nnx.eval_shape(lambda: GPT(CONFIG, rngs=nnx.Rngs(0))),
        loss,
        mesh=make_mesh(num_devices),
        schedule=schedule,
        num_microbatches=num_microbatches,
    )
    shape = (2 * num_microbatches, CONFIG.max_sequence_length)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    batch = {"tokens": tokens, "targets": tokens}
    begin = time.perf_counter()
    jax.jit(pipeline.value_and_grad).lower(pipeline.param_shapes, batch).compile()
    return time.perf_counter() - begin


def main() -> None:
    """Prints two tables for every schedule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "zb_h1", "zbv"])
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", max(NUM_DEVICES))
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores")
    for schedule in options.schedules:
        by_microbatches = [(4, count) for count in NUM_MICROBATCHES]
        by_devices = [(count, 32) for count in NUM_DEVICES if schedule != "zbv" or count <= 8]
        found: dict[tuple[int, int], list[float]] = {}
        for _ in range(options.repeats):
            for size in dict.fromkeys([*by_microbatches, *by_devices]):
                found.setdefault(size, []).append(compile_seconds(schedule, *size))
        seconds = {size: statistics.median(each) for size, each in found.items()}
        for title, sizes in (("microbatches", by_microbatches), ("devices", by_devices)):
            place = 1 if title == "microbatches" else 0
            row = "  ".join(f"{size[place]}: {seconds[size]:.2f} s" for size in sizes)
            print(f"{schedule:8}{title:14}{row}")


if __name__ == "__main__":
    main()
