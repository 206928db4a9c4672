"""What a pipelined step costs beside the plain gradient of the same microbatches.

    python benchmarks/step_cost.py

All devices of the pipeline are simulated on this machine's cores, so process CPU time says how much
work a step does, whatever the pipeline's idle time: the claim is that a schedule adds next to none.
The plain step is one jitted program on one device: a scan over the same microbatches that adds up
`jax.grad` of the unpipelined model. Repetitions alternate between the programs; the table shows
medians, CPU time as a ratio to the plain step, and compile times.
"""

import argparse
import functools
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxpipe import Params, Pipeline, make_mesh
from jaxpipe.runtime import FunctionalPipeline, plain
from jaxpipe.schedule import schedule_names
from models import GPT, GPTConfig

SIZES = ((4, 8), (4, 32))
ELSEWHERE = {"seq1f1b", "terapipe", "pipedream", "pipedream_2bw", "forward_only", "zb1p"}
"""Sliced and asynchronous schedules, one that trains nothing, and a second name."""

FORMS = (
    *((name, "selective") for name in schedule_names() if name not in ELSEWHERE),
    ("1f1b", "none"),
    ("1f1b", "full"),
)


def loss(logits: jax.Array, *, targets: jax.Array) -> jax.Array:
    """Cross entropy of every token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def plain_step(
    pipeline: FunctionalPipeline, num_microbatches: int
) -> Callable[[Params, Any], Params]:
    """The gradient of the unpipelined model, summed over microbatches in a scan."""
    model = pipeline.spec.model

    def step(params: Params, batch: Any) -> Params:
        def add(total: Params, part: Any) -> tuple[Params, None]:
            _, grads = plain.value_and_grad(model, params, part, None)
            return jax.tree.map(jnp.add, total, grads), None

        cut = jax.tree.map(lambda a: a.reshape(num_microbatches, -1, *a.shape[1:]), batch)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), cut)
        return jax.tree.map(lambda leaf: leaf / num_microbatches, total)

    return jax.jit(step)


def compile_seconds(function: Callable, *operands: Any) -> float:
    """Wall time of tracing and compiling, from nothing."""
    begin = time.perf_counter()
    jax.jit(function).lower(*operands).compile()
    return time.perf_counter() - begin


def run_seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """CPU time of this process, and wall time, of one run."""
    cpu, wall = time.process_time(), time.perf_counter()
    jax.block_until_ready(function())
    return time.process_time() - cpu, time.perf_counter() - wall


def medians(programs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median CPU and wall time of each program, run in turns after once to compile."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for repeat in range(repeats + 1):
        for name, program in programs.items():
            found = run_seconds(program)
            if repeat:
                seconds[name].append(found)
    return {
        name: (statistics.median(cpu), statistics.median(wall))
        for name, (cpu, wall) in (
            (name, zip(*found, strict=True)) for name, found in seconds.items()
        )
    }


def measure(
    config: GPTConfig,
    forms: list[tuple[str, str]],
    num_devices: int,
    num_microbatches: int,
    rows: int,
    repeats: int,
) -> None:
    """Prints the table of one size."""
    model = GPT(config, rngs=nnx.Rngs(0))
    shape = (num_microbatches * rows, config.max_sequence_length)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, shape, np.int32)
    batch = {"tokens": tokens, "targets": np.roll(tokens, -1, axis=1)}
    programs: dict[str, Callable[[], Any]] = {}
    compiling: dict[str, float] = {}
    mesh = make_mesh(num_devices)
    for schedule, remat in forms:
        pipeline = Pipeline(
            model,
            loss,
            mesh=mesh,
            schedule=schedule,
            num_microbatches=num_microbatches,
            remat=remat,
        )
        params = pipeline.params(model)
        name = f"{schedule}, {remat}"
        compiling[name] = compile_seconds(pipeline.value_and_grad, params, batch)
        programs[name] = functools.partial(pipeline.value_and_grad, params, batch)
        if "plain" not in programs:
            single = jax.device_put(pipeline.from_pipeline(params), jax.devices()[0])
            step = plain_step(pipeline, num_microbatches)
            compiling["plain"] = compile_seconds(step, single, batch)
            programs["plain"] = functools.partial(step, single, batch)
    found = medians(programs, repeats)
    print(
        f"\nP = {num_devices}, M = {num_microbatches}, microbatches of {rows} x {shape[1]} tokens"
    )
    print(f"{'program':30}{'CPU s':>9}{'wall s':>9}{'CPU / plain':>13}{'compile s':>11}")
    for name in sorted(programs, key=lambda name: name != "plain"):
        cpu, wall = found[name]
        ratio = cpu / found["plain"][0]
        print(f"{name:30}{cpu:9.3f}{wall:9.3f}{ratio:13.3f}{compiling[name]:11.2f}")


def main() -> None:
    """Prints the environment and a table for every size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4, help="examples in a microbatch")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--schedules", nargs="+", help="only these")
    options = parser.parse_args()
    forms = [form for form in FORMS if not options.schedules or form[0] in options.schedules]
    jax.config.update("jax_num_cpu_devices", max(size for size, _ in SIZES))
    config = GPTConfig(
        vocab_size=256,
        max_sequence_length=options.sequence,
        num_layers=options.layers,
        width=options.width,
        num_heads=4,
    )
    print(
        f"jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{options.layers} layers of width {options.width}"
    )
    for num_devices, num_microbatches in SIZES:
        measure(config, forms, num_devices, num_microbatches, options.rows, options.repeats)


if __name__ == "__main__":
    main()
