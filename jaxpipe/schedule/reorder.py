"""Decide an order by simulating: whenever a device is free, it picks what to issue next.

`fill_weights` and `retime` are two policies of this one simulation. A device picks

 1. the next action of its row, if it is ready and an F finds room for its activation;
 2. when overtaking is allowed, the first action further down that is ready and leaves room for all
    the F it overtakes;
 3. the oldest W that waits, if there is one, unless the next action is about to become ready;
 4. nothing, until something arrives.

No device can get stuck: an F that finds no room makes the device issue a W, of which there is one
as long as the cap is not below what F and B need; and an F that overtakes keeps the room of those
it overtakes. The time is linear in the number of actions, up to the logarithm of the number of
devices.
"""

import collections
import dataclasses
import heapq

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.dependencies import dependencies
from jaxpipe.schedule.live import peak_live
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.simulate import check_shares

_TIE = 1e-9
"""Times closer than this part of a microbatch are one: sums of thirds do not come out even."""

_PATIENCE = 0.5
"""A device waits for its next action if the wait is shorter than this part of a W."""


def reorder(
    schedule: Schedule,
    *,
    costs: Costs | None,
    activation_cap: int | None,
    look_ahead: int,
) -> Schedule:
    """The same actions in the order in which the devices would pick them.

    Args:
        schedule: Its rows give the order that devices follow; a W is picked when there is time.
        costs: What the actions cost; by default F = B = W = R = 1.
        activation_cap: The most activations a device keeps from F to W; by default the most that
            any device of the schedule keeps.
        look_ahead: How many cells of its row a device may look beyond the next one.

    Raises:
        ValueError: If the schedule updates weights on its way, or the cap is below what its F and B
            need.
    """
    costs = Costs() if costs is None else costs
    check_shares(schedule, costs)
    if any(action.kind is Kind.U for action in schedule.positions):
        raise ValueError(
            f"schedule {schedule.name!r} updates weights within the step, so the order of its "
            "weight gradients cannot be changed; use a synchronous schedule"
        )
    needed = max(peak_live(schedule, until=Kind.B))
    if activation_cap is None:
        activation_cap = max(peak_live(schedule, until=Kind.W))
    if activation_cap < needed:
        raise ValueError(
            f"activation_cap={activation_cap} is below the {needed} activations that the forwards "
            f"and backwards of schedule {schedule.name!r} keep at once; use {needed} or more"
        )
    return _Reordering(schedule, costs, activation_cap, look_ahead).run()


class _Reordering:
    """One simulation; the state of every device by its number."""

    def __init__(
        self, schedule: Schedule, costs: Costs, activation_cap: int, look_ahead: int
    ) -> None:
        self.schedule = schedule
        self.costs = costs
        self.activation_cap = activation_cap
        self.look_ahead = look_ahead
        self.tie = _TIE * max(costs.per_microbatch, costs.recompute, costs.hop, costs.head)
        num_devices = schedule.num_devices
        self.queues = [
            collections.deque(cell for cell in row if cell[0].kind is not Kind.W)
            for row in schedule.rows
        ]
        self.rows: list[list[Cell]] = [[] for _ in range(num_devices)]
        self.weights: list[collections.deque[Action]] = [
            collections.deque() for _ in range(num_devices)
        ]
        self.live = [0] * num_devices
        self.free_at = [0.0] * num_devices
        self.ends: dict[Action, float] = {}
        self.watchers: dict[Action, set[int]] = collections.defaultdict(set)
        self.wake_ups = [(0.0, device) for device in range(num_devices)]

    def run(self) -> Schedule:
        while self.wake_ups:
            now, device = heapq.heappop(self.wake_ups)
            if now < self.free_at[device] - self.tie:
                continue  # it has found something to do since; its end wakes it up again
            cell = self._pick(device, now)
            if cell is not None:
                self._issue(device, cell, max(now, self.free_at[device]))
        assert not any(self.queues), "a device got stuck"
        return dataclasses.replace(self.schedule, rows=tuple(map(tuple, self.rows)))

    def _pick(self, device: int, now: float) -> Cell | None:
        queue = self.queues[device]
        room = self.activation_cap - self.live[device]
        next_ready_at = None
        for place in range(min(len(queue), self.look_ahead + 1)):
            cell = queue[place]
            room -= self._kept(cell)
            ready_at = self._ready_at(device, cell)
            if place == 0:
                next_ready_at = ready_at
            if room >= 0 and ready_at is not None and ready_at <= now + self.tie:
                del queue[place]
                return cell
        if not self.weights[device]:
            if next_ready_at is not None:
                heapq.heappush(self.wake_ups, (next_ready_at, device))
            return None
        weight: Cell = (self.weights[device][0],)
        if next_ready_at is not None and now + self.tie < next_ready_at < (
            now + _PATIENCE * self._duration(weight)
        ):
            heapq.heappush(self.wake_ups, (next_ready_at, device))
            return None
        self.weights[device].popleft()
        return weight

    def _ready_at(self, device: int, cell: Cell) -> float | None:
        """When a cell can start, or None as long as something it waits for is not even issued."""
        latest = 0.0
        for action in cell:
            for awaited in dependencies(self.schedule, action):
                end = self.ends.get(awaited)
                if end is None:
                    self.watchers[awaited].add(device)
                    return None
                if self.costs.hop and self.schedule.positions[awaited][0] != device:
                    end += self.costs.hop
                latest = max(latest, end)
        return latest

    def _issue(self, device: int, cell: Cell, start: float) -> None:
        end = start + self._duration(cell)
        self.free_at[device] = end
        self.rows[device].append(cell)
        self.live[device] += self._kept(cell)
        for action in cell:
            self.ends[action] = end
            if action.kind in (Kind.W, Kind.BW) or (
                action.kind is Kind.B and self.schedule.backward[action.stage] is Backward.INPUT
            ):
                self.live[device] -= 1
            elif action.kind is Kind.B:
                self.weights[device].append(action._replace(kind=Kind.W))
            for watcher in self.watchers.pop(action, ()):
                heapq.heappush(self.wake_ups, (end + self.costs.hop, watcher))
        heapq.heappush(self.wake_ups, (end, device))

    def _kept(self, cell: Cell) -> int:
        """How many activations a cell adds to those its device keeps."""
        backward = self.schedule.backward
        return sum(
            action.kind is Kind.F and backward[action.stage] is not Backward.NONE for action in cell
        )

    def _duration(self, cell: Cell) -> float:
        return self.costs.of_cell(
            cell, num_chunks=self.schedule.num_chunks, num_slices=self.schedule.num_slices
        )
