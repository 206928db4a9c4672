"""The schedules that the compiled loop runs, in groups that share a step.

All synchronous schedules of the library stand here, but for those that cut microbatches into
slices, and some transformed ones. A table is an operand of the step, so the schedules of one
placement run in one executable if they agree on splitting their backwards.
"""

import dataclasses
import functools
from collections.abc import Iterator

from jaxpipe.lower import Program, TableSizes, lower
from jaxpipe.runtime.remat import choose_remat
from jaxpipe.schedule import Kind, Schedule, fill_weights, make_schedule, schedule_names

ELSEWHERE = {"seq1f1b", "terapipe", "pipedream", "pipedream_2bw"}
"""Sliced and asynchronous schedules."""

SIZES = [(1, 3), (2, 4), (3, 6), (4, 2), (4, 8)]
"""Devices and microbatches. Four devices and two microbatches leave some without work at times."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Schedules that one step can run.

    Attributes:
        name: For test ids.
        schedules: The schedules, by name.
    """

    name: str
    schedules: dict[str, Schedule]

    def lowered(self, remat: str) -> tuple[dict[str, Program], TableSizes]:
        """The programs under a choice of recomputation, and sizes that hold them all."""
        choice = choose_remat(remat)
        programs = {
            name: lower(choice.apply(schedule)) for name, schedule in self.schedules.items()
        }
        sizes = functools.reduce(TableSizes.join, map(TableSizes.of, programs.values()))
        return programs, sizes


def schedules(num_devices: int, num_microbatches: int) -> Iterator[tuple[str, Schedule]]:
    """Every schedule that exists for these sizes."""
    for name in schedule_names():
        if name in ELSEWHERE:
            continue
        try:
            yield name, make_schedule(name, num_devices, num_microbatches)
        except ValueError:
            continue  # not for these sizes; a test makes sure that no name is left out
    more = {
        "interleaved_1f1b, 3 chunks": ("interleaved_1f1b", {"num_chunks": 3}),
        "hanayo, 2 waves": ("hanayo", {"num_waves": 2}),
    }
    for title, (name, options) in more.items():
        yield title, make_schedule(name, num_devices, num_microbatches, **options)
    for name in ("gpipe", "interleaved_1f1b", "hanayo"):
        filled = fill_weights(make_schedule(name, num_devices, num_microbatches))
        yield f"{name}, W filled in", filled


@functools.cache
def groups() -> list[Group]:
    """All schedules of all sizes, grouped."""
    found: dict[tuple, Group] = {}
    for num_devices, num_microbatches in SIZES:
        for name, schedule in schedules(num_devices, num_microbatches):
            is_split = any(action.kind is Kind.W for action in schedule.positions)
            key = (
                num_devices,
                num_microbatches,
                schedule.placement.paths,
                schedule.placement.path_starts,
                schedule.backward,
                is_split,
            )
            title = f"{num_devices}x{num_microbatches} {name}"
            found.setdefault(key, Group(title, {})).schedules[name] = schedule
    return list(found.values())
