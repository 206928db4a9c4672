"""How long schedules of half a million actions take to make, check, simulate and lower.

    python benchmarks/schedule_scale.py

P = 64 devices, v = 4 chunks, M = 1024 microbatches, and the same with a quarter of the
microbatches: the time per action must not grow with their number. CPU seconds of one process, no
array is touched. Smaller: `--devices 16 --microbatches 256`.
"""

import argparse
import platform
import time
from collections.abc import Callable

from jaxpipe.lower import lower
from jaxpipe.schedule import (
    Schedule,
    fill_weights,
    from_csv,
    lower_bound,
    make_schedule,
    simulate,
    to_csv,
    validate,
)


def cpu_seconds(work: Callable[[], object]) -> tuple[float, object]:
    """How long some work takes this process, and what comes of it."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def measure(num_devices: int, num_chunks: int, num_microbatches: int) -> dict[str, float]:
    """CPU seconds of every step for interleaved 1F1B at one size; `actions` is their number."""
    seconds: dict[str, float] = {}
    seconds["generate"], made = cpu_seconds(
        lambda: make_schedule(
            "interleaved_1f1b", num_devices, num_microbatches, num_chunks=num_chunks
        )
    )
    assert isinstance(made, Schedule)
    seconds["validate"], _ = cpu_seconds(lambda: validate(made))
    seconds["simulate"], _ = cpu_seconds(lambda: simulate(made))
    seconds["lower bound"], _ = cpu_seconds(lambda: lower_bound(made))
    seconds["lower"], _ = cpu_seconds(lambda: lower(made))
    seconds["W-fill"], _ = cpu_seconds(lambda: fill_weights(made))
    seconds["to CSV and back"], _ = cpu_seconds(lambda: from_csv(to_csv(made), check=False))
    return {"actions": float(len(made.positions)), **seconds}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=1024)
    sizes = parser.parse_args()

    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}")
    quarter = measure(sizes.devices, sizes.chunks, max(1, sizes.microbatches // 4))
    whole = measure(sizes.devices, sizes.chunks, sizes.microbatches)
    print(f"interleaved_1f1b, P={sizes.devices}, v={sizes.chunks}, M={sizes.microbatches}")
    print(f"{'step':<16} {'seconds':>8} {'us/action':>10} {'us/action at M/4':>17}")
    for step in whole:
        if step == "actions":
            continue
        print(
            f"{step:<16} {whole[step]:>8.2f} {1e6 * whole[step] / whole['actions']:>10.2f} "
            f"{1e6 * quarter[step] / quarter['actions']:>17.2f}"
        )
    print(f"{int(whole['actions'])} actions, {int(quarter['actions'])} at M/4")


if __name__ == "__main__":
    main()
