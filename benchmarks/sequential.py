"""What a `Sequential` in one stage costs beside the plain jitted step of the same microbatches.

    python benchmarks/sequential.py

One stage means no bubble and no message: what is left is what the pipeline itself adds, the stash
in its slots and parameters that lie flat. The plain step is a scan over the same microbatches that
adds up `jax.grad` of the unpipelined model. Repetitions alternate between the programs; the table
shows medians of the process CPU time and of the wall time, and the ratio of CPU times.
"""

import argparse
import functools
import os
import platform
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from step_cost import medians, plain_step

from jaxpipe import Sequential, SequentialPipeline, make_mesh
from jaxpipe.nn import pop, stash


def make_convolutions(channels: int) -> tuple[Sequential, dict[str, Any]]:
    """A small U-Net and a batch of images of 32 x 32 pixels, eight in a microbatch."""
    rngs = nnx.Rngs(0)

    def conv(inputs: int, outputs: int) -> nnx.Conv:
        return nnx.Conv(inputs, outputs, (3, 3), rngs=rngs)

    def double(x: jax.Array) -> jax.Array:
        return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)

    model = Sequential(
        [
            conv(1, channels),
            jax.nn.relu,
            conv(channels, channels),
            jax.nn.relu,
            stash("skip"),
            lambda x: nnx.avg_pool(x, (2, 2), (2, 2)),
            conv(channels, 2 * channels),
            jax.nn.relu,
            conv(2 * channels, 2 * channels),
            jax.nn.relu,
            double,
            pop("skip", lambda x, skip: jnp.concatenate([x, skip], -1)),
            conv(3 * channels, channels),
            jax.nn.relu,
            conv(channels, 1),
        ]
    )
    images = np.random.default_rng(0).normal(size=(64, 32, 32, 1)).astype(np.float32)
    return model, {"inputs": images, "targets": images}


def make_matmuls(width: int) -> tuple[Sequential, dict[str, Any]]:
    """Eight dense layers and a batch of vectors, 256 in a microbatch."""
    rngs = nnx.Rngs(0)
    layers = [layer for _ in range(8) for layer in (nnx.Linear(width, width, rngs=rngs), jnp.tanh)]
    vectors = np.random.default_rng(0).normal(size=(2048, width)).astype(np.float32)
    return Sequential(layers), {"inputs": vectors, "targets": vectors}


def squares(outputs: jax.Array, *, targets: jax.Array) -> jax.Array:
    """The squared error of every example."""
    return jnp.mean((outputs - targets) ** 2, range(1, outputs.ndim))


def measure(
    title: str, model: Sequential, batch: dict[str, Any], num_microbatches: int, repeats: int
) -> None:
    """Prints the rows of one model."""
    programs: dict[str, Callable[[], Any]] = {}
    for remat in ("none", "selective"):
        pipeline = SequentialPipeline(
            model, squares, mesh=make_mesh(1), num_microbatches=num_microbatches, remat=remat
        )
        params = pipeline.params(model)
        programs[f"one stage, {remat}"] = functools.partial(pipeline.value_and_grad, params, batch)
        if "plain" not in programs:
            step = plain_step(pipeline, num_microbatches)
            programs["plain"] = functools.partial(step, pipeline.from_pipeline(params), batch)
    found = medians(programs, repeats)
    for name in sorted(programs, key=lambda name: name != "plain"):
        cpu, wall = found[name]
        ratio = cpu / found["plain"][0]
        print(f"{title:16}{name:24}{cpu:9.3f}{wall:9.3f}{ratio:13.3f}")


def main() -> None:
    """Prints the environment and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores")
    print(f"{'model':16}{'program':24}{'CPU s':>9}{'wall s':>9}{'CPU / plain':>13}")
    for title, (model, batch) in {
        "convolutions": make_convolutions(16),
        "matmuls": make_matmuls(512),
    }.items():
        measure(title, model, batch, options.microbatches, options.repeats)


if __name__ == "__main__":
    main()
