"""Two pipeline devices on two cores, beside one: what a pipeline really gains.

    python benchmarks/two_cores.py

Two devices with one thread each run a pipelined step of 16 microbatches; one core runs the plain
gradient of the same microbatches. With two stages and M microbatches the ideal speed-up is
2 M / (M + 1) = 1.88, on cores that do not get in each other's way. How much these two cores give
is measured in the same run: two independent plain steps, each pinned to a core, against one alone.

    r        = work of two pinned plain steps together over that of one, halved (1.0 if free)
    aim      = 95 % of 32/17 x r

Every program runs in a process of its own, pinned with `taskset`-like affinities: the pipeline to
both cores with one compute thread for each device, since XLA on CPU otherwise uses every core for
one matmul. Rounds alternate between the programs; the table shows medians of wall time, process
CPU time, and the wall time that the lockstep of each form predicts from the measured costs of its
actions (`pipeline.measure`, each alone on one core), divided by r.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

NUM_MICROBATCHES, MICROBATCH_SIZE, LAYERS, WIDTH, LENGTH = 16, 4, 4, 256, 128
PLAIN = "plain"
FORMS = (
    "1f1b single",
    "1f1b paired",
    "eager_1f1b paired",
    "gpipe single",
    "gpipe paired",
    "zb_h1 single",
    "zb_h1 full",
    "zb_h2 single",
)


def worker(name: str, cores: list[int]) -> None:
    """Answers every line of standard input with the times of one step."""
    os.sched_setaffinity(0, cores)
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    step, predicted = _step(name)
    step()
    print(predicted, flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        times = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps(times), flush=True)


def _step(name: str) -> tuple[Any, float]:
    """The step of a program, compiled at its first call, and how long it should take."""
    import jax

    is_plain = name == PLAIN
    if not is_plain:
        jax.config.update("jax_num_cpu_devices", 2)
    import jax.numpy as jnp

    from jaxpipe import FunctionalPipeline, LayeredModel, Params, make_mesh
    from jaxpipe.lower import TableSizes, TickForm, encode, lower
    from jaxpipe.runtime import engine, plain
    from jaxpipe.schedule import make_schedule

    def block(params: Any, x: jax.Array, batch: Any, keys: Any) -> jax.Array:
        return x + jax.nn.gelu(x @ params["up"]) @ params["down"]

    model = LayeredModel(
        num_layers=LAYERS,
        embed=lambda outer, batch, keys: batch["x"],
        block=block,
        head=lambda outer, x, batch, keys: x * outer["gain"],
        loss=lambda outputs, batch: jnp.mean(outputs**2, axis=-1),
    )
    keys = iter(jax.random.split(jax.random.key(0), 8))
    normal = jax.random.normal
    params = Params(
        {
            "up": normal(next(keys), (LAYERS, WIDTH, 4 * WIDTH)) * 0.02,
            "down": normal(next(keys), (LAYERS, 4 * WIDTH, WIDTH)) * 0.02,
        },
        {"gain": jnp.ones(WIDTH)},
    )
    batch = {"x": normal(next(keys), (NUM_MICROBATCHES * MICROBATCH_SIZE, LENGTH, WIDTH))}
    if is_plain:

        def add(total: Params, part: Any) -> tuple[Params, None]:
            _, grads = plain.value_and_grad(model, params, part, None)
            return jax.tree.map(jnp.add, total, grads), None

        @jax.jit
        def run(params: Params, batch: Any) -> Params:
            cut = jax.tree.map(lambda a: a.reshape(NUM_MICROBATCHES, -1, *a.shape[1:]), batch)
            zeros = jax.tree.map(jnp.zeros_like, params)
            return jax.lax.scan(add, zeros, cut)[0]

        return lambda: jax.block_until_ready(run(params, batch)), 0.0
    schedule_name, form = name.split()
    schedule = make_schedule(schedule_name, 2, NUM_MICROBATCHES)
    pipeline = FunctionalPipeline(
        model, mesh=make_mesh(2), num_microbatches=NUM_MICROBATCHES, schedule=schedule
    )
    program = lower(schedule, form=TickForm(form), sends_block=True)
    predicted = program.under(pipeline.measure(pipeline.to_pipeline(params), batch)).cost
    compiled = jax.jit(engine.value_and_grad(pipeline.spec, TableSizes.of(program)))
    table, placed = encode(program), pipeline.to_pipeline(params)
    return lambda: jax.block_until_ready(compiled(table, placed, batch, None)), predicted


class Program:
    """A worker process."""

    def __init__(self, name: str, cores: list[int]) -> None:
        command = [sys.executable, __file__, "--worker", name, *map(str, cores)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.predicted = float(self.answer())

    def start(self) -> None:
        """Has it run a step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Waits for its answer."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def time(self) -> tuple[float, float]:
        """Wall and CPU seconds of a step."""
        self.start()
        wall, cpu = json.loads(self.answer())
        return wall, cpu


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--worker", nargs="+")
    said = parser.parse_args()
    if said.worker:
        name, *cores = said.worker
        worker(name, [int(core) for core in cores])
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("this benchmark needs two cores")
    one, other = (Program(PLAIN, [core]) for core in cores)
    forms = {name: Program(name, cores) for name in FORMS}
    alone: list[float] = []
    together: list[float] = []
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in FORMS}
    for _ in range(said.rounds):
        alone.append(one.time()[0])
        begin = time.perf_counter()
        one.start()
        other.start()
        one.answer()
        other.answer()
        together.append(time.perf_counter() - begin)
        for name, program in forms.items():
            times[name].append(program.time())
    plain = statistics.median(alone)
    r = plain / statistics.median(together)
    ideal = 2 * NUM_MICROBATCHES / (NUM_MICROBATCHES + 1)
    print(f"{platform.machine()}, Python {platform.python_version()}, {said.rounds} rounds")
    print(f"plain step on one core: {plain:.3f} s; two at once on two cores: r = {r:.3f}")
    print(f"ideal {ideal:.2f}; with these cores {ideal * r:.2f}; aim {0.95 * ideal * r:.2f}\n")
    print(
        f"{'form':<20}{'speed-up':>10}{'of aim':>10}{'CPU/plain':>12}{'wall s':>9}{'predicted':>11}"
    )
    for name in FORMS:
        wall = statistics.median(wall for wall, _ in times[name])
        cpu = statistics.median(cpu for _, cpu in times[name])
        gain = plain / wall
        share = gain / (0.95 * ideal * r)
        predicted = forms[name].predicted / r
        print(
            f"{name:<20}{gain:>10.2f}{share:>10.0%}{cpu / plain:>12.2f}{wall:>9.3f}"
            f"{predicted:>11.3f}"
        )


if __name__ == "__main__":
    main()
