"""When every action starts and ends if each device runs its row as fast as the costs allow.

A device starts a cell when its cell before has ended and everything the cell waits for has arrived:
a result made on the same device at once, one made on another device `hop` later. This is how
free-running devices behave. (The compiled loop runs in ticks, which `jaxpipe.lower` predicts.)

Two totals must not be confused:

    makespan   the end of the last action, counted from 0
    span       on one device, from the start of its first action to the end of its last; of the
               schedule, the largest over devices. It is what a step costs when the steps are run
               back to back and the next one fills the ramps of the last (Zero Bubble papers).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.live import peak_live
from jaxpipe.schedule.lower_bound import lower_bound
from jaxpipe.schedule.messages import Messages, count_messages
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.walk import walk


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """A schedule in time. Made by `simulate`.

    Attributes:
        schedule: What was simulated.
        costs: At which costs.
        starts: For every action, when it starts.
        ends: For every action, when it ends; actions of one cell start and end together.
        busy: For every device, the time it spends in actions.
    """

    schedule: Schedule
    costs: Costs
    starts: Mapping[Action, float] = dataclasses.field(repr=False)
    ends: Mapping[Action, float] = dataclasses.field(repr=False)
    busy: tuple[float, ...]

    @functools.cached_property
    def makespan(self) -> float:
        """The end of the last action."""
        return max(self.ends.values(), default=0.0)

    @functools.cached_property
    def spans(self) -> tuple[float, ...]:
        """For every device, from the start of its first action to the end of its last."""
        return tuple(
            self.ends[row[-1][0]] - self.starts[row[0][0]] if row else 0.0
            for row in self.schedule.rows
        )

    @property
    def span(self) -> float:
        """The largest of `spans`."""
        return max(self.spans)

    @property
    def idle(self) -> tuple[float, ...]:
        """For every device, the time within the makespan that it spends in no action."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def inner_idle(self) -> tuple[float, ...]:
        """For every device, the time within its span that it spends in no action."""
        return tuple(span - busy for span, busy in zip(self.spans, self.busy, strict=True))

    @property
    def bubble(self) -> float:
        """Idle share of all devices' time within the makespan, from 0 to 1."""
        total = self.makespan * self.schedule.num_devices
        return sum(self.idle) / total if total else 0.0

    @property
    def span_bubble(self) -> float:
        """Idle share of all devices' time within one span of the longest, from 0 to 1."""
        total = self.span * self.schedule.num_devices
        return 1 - sum(self.busy) / total if total else 0.0

    @functools.cached_property
    def lower_bound(self) -> float:
        """No order of the same actions on the same devices has a smaller makespan."""
        return lower_bound(self.schedule, self.costs)

    @functools.cached_property
    def peak_live_to_input_gradient(self) -> tuple[int, ...]:
        """For every device, the most activations alive at once, each from its F to its B."""
        return peak_live(self.schedule, until=Kind.B)

    @functools.cached_property
    def peak_live_to_weight_gradient(self) -> tuple[int, ...]:
        """For every device, the most activations alive at once, each from its F to its W."""
        return peak_live(self.schedule, until=Kind.W)

    @functools.cached_property
    def messages(self) -> Messages:
        """What every device sends to others, and hands over to itself."""
        return count_messages(self.schedule)


def simulate(schedule: Schedule, costs: Costs | None = None) -> Simulation:
    """Runs a schedule on paper, in time linear in its number of actions.

    Args:
        schedule: What runs where and in which order.
        costs: What the actions cost; by default F = B = W = R = 1 and hops are free.

    Raises:
        DeadlockError: If the devices would wait for each other for ever; it names the cycle.
        ValueError: If an action waits for one that the schedule does not have, or the costs state
            shares for another number of stages or slices.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> simulation = simulate(one_f_one_b(4, 8))
        >>> simulation.makespan, simulation.idle, simulation.peak_live_to_input_gradient
        (33.0, (9.0, 9.0, 9.0, 9.0), (4, 3, 2, 1))
    """
    costs = Costs() if costs is None else costs
    check_shares(schedule, costs)
    starts: dict[Action, float] = {}
    ends: dict[Action, float] = {}
    free_at = [0.0] * schedule.num_devices
    busy = [0.0] * schedule.num_devices
    duration_of = _durations(schedule, costs)
    positions = schedule.positions if costs.hop else {}
    for device, column, awaited in walk(schedule):
        cell = schedule.rows[device][column]
        start = free_at[device]
        for action in awaited:
            usable = ends[action]
            if costs.hop and positions[action][0] != device:
                usable += costs.hop
            start = max(start, usable)
        duration = duration_of(cell)
        busy[device] += duration
        free_at[device] = start + duration
        for action in cell:
            starts[action] = start
            ends[action] = start + duration
    return Simulation(schedule=schedule, costs=costs, starts=starts, ends=ends, busy=tuple(busy))


def check_shares(schedule: Schedule, costs: Costs) -> None:
    """Raises unless the costs' shares, where stated, fit the schedule's stages and slices."""
    for name, shares, expected in (
        ("stage_shares", costs.stage_shares, schedule.num_stages),
        ("slice_shares", costs.slice_shares, schedule.num_slices),
    ):
        if shares and len(shares) != expected:
            raise ValueError(
                f"costs.{name} must hold one number for each of the {expected} "
                f"{name.split('_')[0]}s of schedule {schedule.name!r}, but holds {len(shares)}; "
                f"give {expected} numbers, or none for equal shares"
            )


def _durations(schedule: Schedule, costs: Costs) -> Callable[[Cell], float]:
    """Cell -> duration, remembering what depends on kind, stage and slice alone."""
    num_chunks, num_slices = schedule.num_chunks, schedule.num_slices
    known: dict[tuple[Kind, int, int], float] = {}

    def duration_of(cell: Cell) -> float:
        if len(cell) != 1:
            return costs.of_cell(cell, num_chunks=num_chunks, num_slices=num_slices)
        kind, stage, _, slice_, _ = cell[0]
        key = kind, stage, slice_
        if key not in known:
            known[key] = costs.of(cell[0], num_chunks=num_chunks, num_slices=num_slices)
        return known[key]

    return duration_of
