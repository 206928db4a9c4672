"""Which tick of the lockstep loop runs which action.

The compiled loop advances all devices together: in one tick each device may act, then messages
cross to the neighbours. A *tick form* says what a device may do within one tick: an ordered list of
slots, each for certain kinds of actions and each used at most once a tick.

    SINGLE   [any]        one action a tick
    PAIRED   [F, B/BW/..] a forward, then a backward

With `PAIRED`, 1F1B on two devices and three microbatches fills its ticks like this (a device's
backward may follow its own forward at once, but a message needs the tick border):

    tick         0       1       2       3       4       5
    device 0   F0  .   F1  .   .  BW0  F2 BW1  .   .   .  BW2       . = slot left empty
    device 1   .   .   F0 BW0  F1 BW1  .   .   F2 BW2  .   .

Every action runs in the first tick that its device's order, its dependencies and the form allow.
A tick lasts as long as the busiest device in it, so the form that needs fewer ticks is not always
the cheaper one: `lockstep_cost` tells.
"""

import enum
from collections import defaultdict

import numpy as np

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.dependencies import dependencies
from jaxpipe.schedule.schedule import Schedule


class TickForm(enum.Enum):
    """What a device may do within one tick: slots in order, each a set of kinds."""

    SINGLE = (frozenset(Kind),)
    PAIRED = (frozenset({Kind.F}), frozenset(Kind) - {Kind.F})

    def slot_of(self, kind: Kind) -> int:
        """Index of the slot that runs actions of `kind`."""
        return next(slot for slot, kinds in enumerate(self.value) if kind in kinds)


def assign_ticks(schedule: Schedule, form: TickForm, *, hop_ticks: int = 0) -> dict[Action, int]:
    """The tick of every action, each as early as it can be.

    Args:
        schedule: A valid schedule.
        form: What fits into one tick.
        hop_ticks: Ticks that a message travels beyond the tick border: 1 lets a send overlap the
            whole next tick.

    Raises:
        ValueError: If actions wait for each other in a circle.
    """
    ticks: dict[Action, int] = {}
    positions = [0] * schedule.num_devices
    # Per device: the tick and slot its last cell took.
    last = [(-1, len(form.value))] * schedule.num_devices
    waiting: defaultdict[Action, list[int]] = defaultdict(list)
    runnable = list(range(schedule.num_devices))
    while runnable:
        device = runnable.pop()
        row = schedule.rows[device]
        while positions[device] < len(row):
            cell = row[positions[device]]
            awaited = [needed for action in cell for needed in dependencies(schedule, action)]
            missing = next((needed for needed in awaited if needed not in ticks), None)
            if missing is not None:
                waiting[missing].append(device)
                break
            first_slot, last_slot = _slots(cell, form)
            tick, used = last[device]
            tick += first_slot <= used
            for needed in awaited:
                if schedule.positions[needed][0] != device:
                    tick = max(tick, ticks[needed] + 1 + hop_ticks)
            last[device] = (tick, last_slot)
            positions[device] += 1
            for action in cell:
                ticks[action] = tick
                runnable += waiting.pop(action, ())
    if len(ticks) < sum(len(cell) for row in schedule.rows for cell in row):
        stuck = [
            str(row[position][0])
            for row, position in zip(schedule.rows, positions, strict=True)
            if position < len(row)
        ]
        raise ValueError(
            f"the schedule {schedule.name!r} can't be lowered: {', '.join(stuck)} wait for each "
            "other; jaxpipe.schedule.validate prints the cycle"
        )
    return ticks


def _slots(cell: Cell, form: TickForm) -> tuple[int, int]:
    """First and last slot that a cell takes within its tick."""
    slots = [form.slot_of(action.kind) for action in cell]
    return min(slots), max(slots)


def lockstep_cost(schedule: Schedule, ticks: dict[Action, int], costs: Costs) -> float:
    """Time of the whole loop when each tick lasts as long as its busiest device."""
    num_ticks = max(ticks.values()) + 1
    busy = np.zeros((num_ticks, schedule.num_devices))
    sizes = {"num_chunks": schedule.num_chunks, "num_slices": schedule.num_slices}
    for device in range(schedule.num_devices):
        for action in schedule.actions(device):
            busy[ticks[action], device] += costs.of(action, **sizes)
    return float(busy.max(axis=1).sum() + costs.hop * (num_ticks - 1))
