"""One GPU: a pipeline of one stage beside the plain step, in five minutes.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --small        # on a CPU, to see that it runs

A GPT of a billion parameters computes in bfloat16. On one device a pipeline has no bubble and
sends nothing, so what it costs beside the plain step is what the loop itself costs. Measured,
interleaved, as medians of wall time with every result waited for:

- the plain step (`jax.grad` in a scan over the microbatches) and the pipelined step (1F1B), with
  their ratio and the model's share of the chip's peak (MFU, 6 FLOPs per parameter and token, and
  12 x layers x width x length for attention, half of that as it is causal);
- an empty tick: the same compiled step with a table in which nothing runs;
- BW in one against B and W (`1f1b` against `zb_h1` on one device);
- the costs of every action, as `pipeline.measure` finds them, and the step they predict.

The last lines repeat the environment, so that the output can be kept as it is.
"""

import argparse
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxpipe import Params, Pipeline, make_mesh
from jaxpipe.runtime import plain
from jaxpipe.runtime.plan import seconds_text
from models import GPT, GPTConfig

BILLION = GPTConfig(
    vocab_size=32_000,
    max_sequence_length=1024,
    num_layers=18,
    width=2048,
    num_heads=16,
    dtype="bfloat16",
)
SMALL = GPTConfig(
    vocab_size=256, max_sequence_length=64, num_layers=2, width=64, num_heads=4, dtype="bfloat16"
)
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12}
"""Dense bfloat16 FLOPs per second, as published."""


def loss(logits: jax.Array, *, targets: jax.Array) -> jax.Array:
    """Cross entropy of every token."""
    precise = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(precise, targets)


def flops(config: GPTConfig, num_parameters: int, num_tokens: int) -> float:
    """Of forward and backward, without recomputation."""
    attention = 6 * config.num_layers * config.width * config.max_sequence_length
    return (6.0 * num_parameters + attention) * num_tokens


def median_seconds(programs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median wall time of every program; the first round compiles."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(repeats + 1):
        for name, program in programs.items():
            begin = time.perf_counter()
            jax.block_until_ready(program())
            if repeat:
                found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) for name, each in found.items()}


def plain_step(pipeline: Pipeline, num_microbatches: int) -> Callable[[Params, Any], Params]:
    """The gradient of the unpipelined model, summed over microbatches in a scan."""
    model, cast = pipeline.spec.model, pipeline.spec.cast

    @jax.jit
    def step(params: Params, batch: Any) -> Params:
        computed = cast(params)

        def add(total: Params, part: Any) -> tuple[Params, None]:
            _, grads = plain.value_and_grad(model, computed, part, None)
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, grads), None

        cut = jax.tree.map(lambda a: a.reshape(num_microbatches, -1, *a.shape[1:]), batch)
        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), cut)[0]

    return step


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a model that runs anywhere")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4, help="examples of a microbatch")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    config = SMALL if options.small else BILLION
    count = options.microbatches
    model = GPT(config, rngs=nnx.Rngs(0))
    shape = (count * options.rows, config.max_sequence_length)
    tokens = jax.random.randint(jax.random.key(0), shape, 0, config.vocab_size, jnp.int32)
    batch = {"tokens": tokens, "targets": jnp.roll(tokens, -1, axis=1)}
    pipelines = {
        schedule: Pipeline(
            model,
            loss,
            mesh=make_mesh(1),
            schedule=schedule,
            num_microbatches=count,
            compute_dtype="bfloat16",
        )
        for schedule in ("1f1b", "zb_h1")
    }
    whole = pipelines["1f1b"]
    params = whole.params(model)
    del model
    num_parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    print(
        f"{num_parameters / 1e9:.3f}B parameters, {count} microbatches of {options.rows} x "
        f"{shape[1]} tokens",
        flush=True,
    )
    in_order = whole.from_pipeline(params)
    step = plain_step(whole, count)
    programs: dict[str, Callable[[], Any]] = {
        "plain": lambda: step(in_order, batch),
        "1f1b (BW)": lambda: whole.value_and_grad(params, batch),
        "zb_h1 (B, W)": lambda: pipelines["zb_h1"].value_and_grad(params, batch),
        "empty table": lambda: whole._value_and_grad(0 * whole.table, params, batch, None),
    }
    seconds = median_seconds(programs, options.repeats)
    device = jax.devices()[0]
    peak = next((peak for name, peak in PEAKS.items() if name in device.device_kind), None)
    work = flops(config, num_parameters, math.prod(shape))
    for name, found in seconds.items():
        mfu = f"  MFU {work / found / peak:.1%}" if peak and name != "empty table" else ""
        print(f"{name:14}{found * 1e3:10.2f} ms{found / seconds['plain']:8.3f} of plain{mfu}")
    num_ticks = whole.program.num_ticks
    print(f"an empty tick takes at most {seconds['empty table'] / num_ticks * 1e6:.1f} us")
    for schedule, pipeline in pipelines.items():
        costs = pipeline.measure(params, batch)
        texts = ", ".join(f"{kind} {seconds_text(each[0])}" for kind, each in costs.by_stage)
        predicted = pipeline.program.under(costs).cost
        measured = seconds["1f1b (BW)" if schedule == "1f1b" else "zb_h1 (B, W)"]
        print(
            f"{schedule}: {texts}; predicted {seconds_text(predicted)}, "
            f"measured {seconds_text(measured)}"
        )
    print(
        f"{device.device_kind}, jax {jax.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
