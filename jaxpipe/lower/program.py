"""A lowered schedule: ticks, buffer slots, and what they will cost.

`lower` is the only way from a schedule to something that runs. It fixes the tick of every action
and the slot of every value, and thereby knows before anything is compiled how many ticks the loop
takes, how long it lasts under a cost model, and how many slots each pool needs.
"""

import dataclasses
import enum
import itertools
from collections.abc import Mapping

from jaxpipe.lower.aligned import align_ticks
from jaxpipe.lower.lockstep import lockstep_cost
from jaxpipe.lower.pools import Pool, lifetimes
from jaxpipe.lower.slots import allocate
from jaxpipe.lower.ticks import TickForm, assign_ticks
from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Schedule

MOST_ACTIONS_TO_ALIGN = 10_000
"""Aligning looks at all devices in every tick. Beyond this many actions `lower` leaves it out,
unless it is asked for."""


class Packing(enum.Enum):
    """How actions are put into ticks."""

    EARLIEST = "earliest"  # as early as possible
    ALIGNED = "aligned"  # so that long actions meet long ones


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A schedule with a tick for every action and a slot for every value.

    Attributes:
        schedule: What was lowered.
        form: What a device may do in one tick.
        packing: How its actions were put into ticks.
        hop_ticks: Ticks that a message travels beyond the tick border.
        costs: The costs that the predictions hold for.
        sends_block: Whether devices wait for messages instead of computing beside them.
        ticks: The tick of every action.
        slots: For every pool, the slot of every value on the device that holds it. Values are named
            as in `jaxpipe.lower.pools`.
        num_slots: For every pool, its slots on each device.
        cost: Predicted time of the loop: each tick lasts as long as its busiest device, and as the
            messages that nothing hides (`jaxpipe.lower.lockstep`).
    """

    schedule: Schedule
    form: TickForm
    packing: Packing
    hop_ticks: int
    costs: Costs
    sends_block: bool
    ticks: Mapping[Action, int]
    slots: Mapping[Pool, Mapping[Action, int]]
    num_slots: Mapping[Pool, tuple[int, ...]]
    cost: float

    @property
    def num_ticks(self) -> int:
        """Ticks of the loop."""
        return max(self.ticks.values()) + 1

    @property
    def ideal_cost(self) -> float:
        """Time a device works, on average: a lower bound on `cost`."""
        schedule = self.schedule
        sizes = {"num_chunks": schedule.num_chunks, "num_slices": schedule.num_slices}
        total = sum(
            self.costs.of(action, **sizes)
            for device in range(schedule.num_devices)
            for action in schedule.actions(device)
        )
        return total / schedule.num_devices

    @property
    def bubble(self) -> float:
        """Idle time over total time of the lockstep loop, on average over the devices."""
        return 1 - self.ideal_cost / self.cost

    def under(self, costs: Costs) -> "Program":
        """The same ticks and slots, with the predictions of other costs."""
        cost = lockstep_cost(
            self.schedule,
            dict(self.ticks),
            costs,
            hop_ticks=self.hop_ticks,
            sends_block=self.sends_block,
        )
        return dataclasses.replace(self, costs=costs, cost=cost)

    def max_slots(self, pool: Pool) -> int:
        """Slots that every device allocates for `pool`: all run one program, so the largest."""
        return max(self.num_slots.get(pool, (0,)))


def lower(
    schedule: Schedule,
    costs: Costs | None = None,
    *,
    form: TickForm | None = None,
    packing: Packing | None = None,
    hop_ticks: int | None = None,
    sends_block: bool = False,
) -> Program:
    """Assigns ticks and slots.

    What is not given is chosen: the cheapest combination under `costs`, and between equals the one
    with fewer stashes, then fewer ticks.

    Args:
        schedule: A valid schedule.
        costs: Costs to predict with; by default F = B = W = 1.
        form: What fits into one tick.
        packing: How actions are put into ticks.
        hop_ticks: Ticks that a message travels beyond the tick border; 1 is tried only if a hop
            costs something.
        sends_block: Whether devices wait for messages instead of computing beside them, as XLA has
            CPUs do.

    Raises:
        ValueError: If actions wait for each other in a circle, or a cell holds two actions of one
            phase.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> program = lower(one_f_one_b(4, 8))
        >>> program.cost, program.max_slots(Pool.STASH)
        (40.0, 4)
    """
    costs = costs or Costs()
    num_actions = len(schedule.positions)
    packings = list(Packing) if num_actions <= MOST_ACTIONS_TO_ALIGN else [Packing.EARLIEST]
    candidates = itertools.product(
        _forms(schedule) if form is None else [form],
        packings if packing is None else [packing],
        ([0, 1] if costs.hop else [0]) if hop_ticks is None else [hop_ticks],
    )
    programs = [_lower_in(schedule, costs, *candidate, sends_block) for candidate in candidates]
    cheapest = min(program.cost for program in programs) * (1 + 1e-9)
    equals = [program for program in programs if program.cost <= cheapest]
    return min(equals, key=lambda each: (each.max_slots(Pool.STASH), each.num_ticks))


def _forms(schedule: Schedule) -> list[TickForm]:
    """The tick forms that differ for this schedule."""
    kinds = {action.kind for action in schedule.positions}
    forms = [TickForm.SINGLE, TickForm.PAIRED]
    if Kind.R in kinds:
        forms.insert(1, TickForm.JOINED)
    if kinds & {Kind.R, Kind.W}:
        forms.append(TickForm.FULL)
    return forms


def _lower_in(
    schedule: Schedule,
    costs: Costs,
    form: TickForm,
    packing: Packing,
    hop_ticks: int,
    sends_block: bool,
) -> Program:
    ticks = assign_ticks(schedule, form, hop_ticks=hop_ticks)
    if packing is Packing.ALIGNED:
        ticks = align_ticks(schedule, form, costs, hop_ticks=hop_ticks, sends_block=sends_block)
    slots: dict[Pool, dict[Action, int]] = {}
    num_slots: dict[Pool, tuple[int, ...]] = {}
    for pool, devices in lifetimes(schedule, ticks, hop_ticks=hop_ticks).items():
        allocations = [allocate(lives) for lives in devices]
        slots[pool] = {value: slot for found, _ in allocations for value, slot in found.items()}
        num_slots[pool] = tuple(count for _, count in allocations)
    return Program(
        schedule=schedule,
        form=form,
        packing=packing,
        hop_ticks=hop_ticks,
        costs=costs,
        sends_block=sends_block,
        ticks=ticks,
        slots=slots,
        num_slots=num_slots,
        cost=lockstep_cost(schedule, ticks, costs, hop_ticks=hop_ticks, sends_block=sends_block),
    )
