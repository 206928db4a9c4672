"""What running in lockstep costs each schedule, for every tick form and packing.

    python benchmarks/lockstep.py

P = 4 devices, M = 16 microbatches, F = 1, B = 1.3, W = 0.7, free hops, two chunks where a schedule
leaves this open. Every number is the predicted time of the loop over the time of free-running
devices (the simulated makespan), which no lockstep can beat in the same order; `*` marks what
`lower` chooses. Nothing is measured: pure arithmetic.
Other costs: `--backward-input 1 --backward-weight 1`, `--hop 0.2`.
"""

import argparse

from jaxpipe.lower import Packing, TickForm, lower
from jaxpipe.schedule import Costs, Schedule, insert_recompute, make_schedule, simulate

NAMES = (
    "gpipe",
    "1f1b",
    "eager_1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "hanayo",
    "chimera",
    "zb_h1",
    "zb_h2",
    "interleaved_zb",
    "zbv",
    "v_half",
    "v_min",
    "dualpipe",
    "dualpipe_v",
)


def schedules(num_devices: int, num_microbatches: int) -> dict[str, Schedule]:
    """The rows of the table."""
    made = {name: make_schedule(name, num_devices, num_microbatches) for name in NAMES}
    return made | {"1f1b, all recomputed": insert_recompute(made["1f1b"])}


def ratios(schedule: Schedule, costs: Costs) -> list[str]:
    """Lockstep over free-running, form by form, as early as possible and then aligned."""
    free = simulate(schedule, costs).makespan
    chosen = lower(schedule, costs)
    found: list[str] = []
    for form in TickForm:
        for packing in Packing:
            program = lower(schedule, costs, form=form, packing=packing)
            is_chosen = (form, packing) == (chosen.form, chosen.packing)
            found.append(f"{program.cost / free:.3f}{'*' if is_chosen else ' '}")
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--backward-input", type=float, default=1.3)
    parser.add_argument("--backward-weight", type=float, default=0.7)
    parser.add_argument("--hop", type=float, default=0.0)
    given = parser.parse_args()
    costs = Costs(
        backward_input=given.backward_input, backward_weight=given.backward_weight, hop=given.hop
    )
    print(
        f"P={given.devices} M={given.microbatches} F={costs.forward} B={costs.backward_input} "
        f"W={costs.backward_weight} R={costs.recompute} hop={costs.hop}"
    )
    print(f"{'':<21}" + "".join(f"{form.value:>17}" for form in TickForm))
    print(f"{'':<21}" + " earliest aligned" * len(TickForm))
    for name, schedule in schedules(given.devices, given.microbatches).items():
        columns = "".join(f"{ratio:>8}" for ratio in ratios(schedule, costs))
        print(f"{name:<21}{columns}".rstrip())


if __name__ == "__main__":
    main()
