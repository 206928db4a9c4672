"""Which tick of the lockstep loop runs which action.

The compiled loop advances all devices together: in one tick each device may act, then messages
cross to the neighbours. Within a tick a device goes through four *phases*, always in this order and
each at most once: a forward, the second forward of a recomputation, a backward (or its part B), and
the part W. A *tick form* says which of them may share a tick:

    SINGLE   one action
    JOINED   one action, or an R and its own backward right behind it
    PAIRED   a forward, then what JOINED admits
    FULL     all four

With `PAIRED`, 1F1B on two devices
and three microbatches fills its ticks like this (a device's backward may follow its own forward at
once, but a message needs the tick border):

    tick         0       1       2       3       4       5
    device 0   F0  .   F1  .   .  BW0  F2 BW1  .   .   .  BW2       . = phase left empty
    device 1   .   .   F0 BW0  F1 BW1  .   .   F2 BW2  .   .

Here every action runs in the first tick that its device's order, its dependencies and the form
allow. A tick lasts as long as the busiest device in it, so the form that needs fewer ticks is not
always the cheaper one (`jaxpipe.lower.lockstep`), nor is the earliest tick always the best one
(`jaxpipe.lower.aligned`).
"""

import enum
import itertools
from collections import defaultdict

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.dependencies import dependencies
from jaxpipe.schedule.schedule import Schedule


class Phase(enum.IntEnum):
    """The parts of a tick, in the order in which a device runs them."""

    FORWARD = 0
    RECOMPUTE = 1
    BACKWARD = 2
    WEIGHT = 3


def phase_of(kind: Kind) -> Phase:
    """The phase that runs actions of a kind."""
    match kind:
        case Kind.F:
            return Phase.FORWARD
        case Kind.R:
            return Phase.RECOMPUTE
        case Kind.W | Kind.U:
            return Phase.WEIGHT
        case _:
            return Phase.BACKWARD


class TickForm(enum.Enum):
    """What a device may do within one tick."""

    SINGLE = "single"
    JOINED = "joined"
    PAIRED = "paired"
    FULL = "full"

    def admits(self, before: Cell, cell: Cell) -> bool:
        """Whether a cell may run in the same tick as the actions `before` it on its device."""
        if not before:
            return True
        if before[-1].kind is Kind.BW and cell[0].kind is Kind.W:
            return False  # beside a W, a BW is a B and a W itself
        if min(phase_of(action.kind) for action in cell) <= phase_of(before[-1].kind):
            return False
        match self:
            case TickForm.SINGLE:
                return False
            case TickForm.JOINED:
                return _is_own_recompute(before[-1], cell[0])
            case TickForm.PAIRED:
                only_forward = all(action.kind is Kind.F for action in before)
                return only_forward or _is_own_recompute(before[-1], cell[0])
            case TickForm.FULL:
                return True


def _is_own_recompute(action: Action, follower: Action) -> bool:
    """Whether the first action recomputes for the second."""
    return action.kind is Kind.R and action._replace(kind=follower.kind) == follower


def assign_ticks(schedule: Schedule, form: TickForm, *, hop_ticks: int = 0) -> dict[Action, int]:
    """The tick of every action, each as early as it can be.

    Args:
        schedule: A valid schedule.
        form: What fits into one tick. The actions of one cell share a tick in every form.
        hop_ticks: Ticks that a message travels beyond the tick border: 1 lets a send overlap the
            whole next tick.

    Raises:
        ValueError: If actions wait for each other in a circle, or a cell holds two actions of one
            phase.
    """
    ticks: dict[Action, int] = {}
    positions = [0] * schedule.num_devices
    last: list[tuple[int, Cell]] = [(0, ())] * schedule.num_devices  # tick, and what runs in it
    waiting: defaultdict[Action, list[int]] = defaultdict(list)
    runnable = list(range(schedule.num_devices))
    while runnable:
        device = runnable.pop()
        row = schedule.rows[device]
        while positions[device] < len(row):
            cell = in_phase_order(row[positions[device]])
            awaited = [needed for action in cell for needed in dependencies(schedule, action)]
            missing = next((needed for needed in awaited if needed not in ticks), None)
            if missing is not None:
                waiting[missing].append(device)
                break
            tick, before = last[device]
            earliest = tick if form.admits(before, cell) else tick + 1
            for needed in awaited:
                if schedule.positions[needed][0] != device:
                    earliest = max(earliest, ticks[needed] + 1 + hop_ticks)
            last[device] = (earliest, (*before, *cell) if earliest == tick else cell)
            positions[device] += 1
            for action in cell:
                ticks[action] = earliest
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


def in_phase_order(cell: Cell) -> Cell:
    """The actions of a cell in the order in which a tick runs them.

    Raises:
        ValueError: If two of them belong to one phase.
    """
    if len(cell) == 1:
        return cell
    ordered = sorted(cell, key=lambda action: phase_of(action.kind))
    for action, following in itertools.pairwise(ordered):
        if phase_of(action.kind) == phase_of(following.kind):
            raise ValueError(
                f"a cell may hold one forward, one recomputation, one backward and one W, since "
                f"all of it runs in one tick; found {action} beside {following}: put them into "
                "cells of their own"
            )
    return tuple(ordered)
