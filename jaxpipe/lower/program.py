"""A lowered schedule: ticks, buffer slots, and what they will cost.

`lower` is the only way from a schedule to something that runs. It fixes the tick of every action
and the slot of every value, and thereby knows before anything is compiled how many ticks the loop
takes, how long it lasts under a cost model, and how many slots each pool needs.
"""

import dataclasses
from collections.abc import Mapping

from jaxpipe.lower.pools import Pool, lifetimes
from jaxpipe.lower.slots import allocate
from jaxpipe.lower.ticks import TickForm, assign_ticks, lockstep_cost
from jaxpipe.schedule.action import Action
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Schedule


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A schedule with a tick for every action and a slot for every value.

    Attributes:
        schedule: What was lowered.
        form: What a device may do in one tick.
        hop_ticks: Ticks that a message travels beyond the tick border.
        costs: The costs that the predictions hold for.
        ticks: The tick of every action.
        slots: For every pool, the slot of every value on the device that holds it. Values are named
            as in `jaxpipe.lower.pools`.
        num_slots: For every pool, its slots on each device.
        cost: Predicted time of the loop: each tick lasts as long as its busiest device.
    """

    schedule: Schedule
    form: TickForm
    hop_ticks: int
    costs: Costs
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

    def max_slots(self, pool: Pool) -> int:
        """Slots that every device allocates for `pool`: all run one program, so the largest."""
        return max(self.num_slots.get(pool, (0,)))


def lower(
    schedule: Schedule,
    costs: Costs | None = None,
    *,
    form: TickForm | None = None,
    hop_ticks: int = 0,
) -> Program:
    """Assigns ticks and slots.

    Args:
        schedule: A valid schedule.
        costs: Costs to predict with; by default F = B = W = 1.
        form: What fits into one tick; by default the cheaper form under `costs`, and between equals
            the one with fewer stashes, then fewer ticks.
        hop_ticks: Ticks that a message travels beyond the tick border.

    Raises:
        ValueError: If actions wait for each other in a circle.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> program = lower(one_f_one_b(4, 8))
        >>> program.num_ticks, program.cost, program.max_slots(Pool.STASH)
        (22, 40.0, 4)
    """
    costs = costs or Costs()
    forms = [form] if form else list(TickForm)
    programs = [_lower_in(schedule, costs, each, hop_ticks) for each in forms]
    return min(programs, key=lambda each: (each.cost, each.max_slots(Pool.STASH), each.num_ticks))


def _lower_in(schedule: Schedule, costs: Costs, form: TickForm, hop_ticks: int) -> Program:
    ticks = assign_ticks(schedule, form, hop_ticks=hop_ticks)
    slots: dict[Pool, dict[Action, int]] = {}
    num_slots: dict[Pool, tuple[int, ...]] = {}
    for pool, devices in lifetimes(schedule, ticks, form, hop_ticks=hop_ticks).items():
        allocations = [allocate(lives) for lives in devices]
        slots[pool] = {value: slot for found, _ in allocations for value, slot in found.items()}
        num_slots[pool] = tuple(count for _, count in allocations)
    return Program(
        schedule=schedule,
        form=form,
        hop_ticks=hop_ticks,
        costs=costs,
        ticks=ticks,
        slots=slots,
        num_slots=num_slots,
        cost=lockstep_cost(schedule, ticks, costs),
    )
