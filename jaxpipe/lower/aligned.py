"""Ticks in which long actions meet long ones.

A tick lasts as long as its busiest device. Run as early as possible, a forward here and a backward
there often share a tick, and the device with the forward waits for the other. Sometimes it is
cheaper to hold an action back until others of its length are ready.

The ticks are filled one after another. All that could run now is known, in the order of each
device's row and within the tick form. Every sum of costs that some device could reach is a possible
length of the tick. With

    w(l)   the work that all devices together do in a tick of length l
    e      how much a long tick is shunned

the length with the largest w(l) / l^e is taken. With e = 1 that is the one at which the devices are
busiest on average. A smaller e holds less back, so that others get their messages sooner; with a
larger one, short actions go first. No device waits for ever: some action always runs.

This looks no further than one tick. No e is always the best, nor is any always better than as early
as possible: here the cheapest of three e is taken, and `lower` weighs it against the rest.
"""

from jaxpipe.lower.lockstep import lockstep_cost
from jaxpipe.lower.ticks import TickForm, in_phase_order
from jaxpipe.schedule.action import Action, Cell
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.dependencies import dependencies
from jaxpipe.schedule.schedule import Schedule

EXPONENTS = (0.7, 1.0, 1.3)
"""With these, 16 schedules at 4 sizes and 3 costs each take on average 1.077 times as long in the
loop as without lockstep. 13 values between 0.4 and 1.7 give 1.074, 1.0 alone gives 1.084, and as
early as possible 1.107."""


def align_ticks(
    schedule: Schedule,
    form: TickForm,
    costs: Costs,
    *,
    hop_ticks: int = 0,
    sends_block: bool = False,
) -> dict[Action, int]:
    """The tick of every action of a schedule that can be lowered.

    Args:
        schedule: A valid schedule, in which no actions wait for each other in a circle.
        form: What fits into one tick.
        costs: What actions cost.
        hop_ticks: Ticks that a message travels beyond the tick border.
        sends_block: Whether devices wait for messages instead of computing beside them.
    """
    packings = [_Packing(schedule, form, costs, hop_ticks, each) for each in EXPONENTS]
    for packing in packings:
        while packing.remaining:
            packing.fill_tick()
    return min(
        (packing.ticks for packing in packings),
        key=lambda ticks: lockstep_cost(
            schedule, ticks, costs, hop_ticks=hop_ticks, sends_block=sends_block
        ),
    )


class _Packing:
    """Ticks under construction."""

    def __init__(
        self, schedule: Schedule, form: TickForm, costs: Costs, hop_ticks: int, exponent: float
    ) -> None:
        self.schedule = schedule
        self.form = form
        self.hop_ticks = hop_ticks
        self.exponent = exponent
        self.rows = [[in_phase_order(cell) for cell in row] for row in schedule.rows]
        sizes = {"num_chunks": schedule.num_chunks, "num_slices": schedule.num_slices}
        self.costs = [
            [sum(costs.of(action, **sizes) for action in cell) for cell in row] for row in self.rows
        ]
        self.awaited = [
            [[each for action in cell for each in dependencies(schedule, action)] for cell in row]
            for row in self.rows
        ]
        self.next = [0] * schedule.num_devices
        self.ticks: dict[Action, int] = {}
        self.tick = 0
        self.remaining = sum(map(len, self.rows))

    def fill_tick(self) -> None:
        """Chooses what runs in the next tick."""
        # For every device, the sums of costs after 0, 1, 2, ... cells.
        reachable = [self._reachable(device) for device in range(len(self.rows))]
        lengths = sorted({cost for sums in reachable for cost in sums[1:]})
        values = [(self._value(reachable, length), length) for length in lengths]
        _, best = max(values, default=(0.0, 0.0))  # between equals the longer tick
        for device, sums in enumerate(reachable):
            for _ in range(_cells_within(sums, best)):
                for action in self.rows[device][self.next[device]]:
                    self.ticks[action] = self.tick
                self.next[device] += 1
                self.remaining -= 1
        self.tick += 1

    def _value(self, reachable: list[list[float]], length: float) -> float:
        """What a tick of this length is worth: w(l) / l^e."""
        work = [sums[_cells_within(sums, length)] for sums in reachable]
        longest = max(work)
        return sum(work) / longest**self.exponent if longest else 0.0

    def _reachable(self, device: int) -> list[float]:
        """The sums of costs of the cells that could run on a device in this tick."""
        sums, before, here = [0.0], Cell(), set[Action]()
        for column in range(self.next[device], len(self.rows[device])):
            cell = self.rows[device][column]
            if not self.form.admits(before, cell) or not all(
                self._has_ended(each, device, here) for each in self.awaited[device][column]
            ):
                break
            sums.append(sums[-1] + self.costs[device][column])
            before = (*before, *cell)
            here.update(cell)
        return sums

    def _has_ended(self, awaited: Action, device: int, here: set[Action]) -> bool:
        """Whether an action may be relied on by a device in this tick."""
        if awaited in here:
            return True
        tick = self.ticks.get(awaited)
        if tick is None:
            return False
        is_local = self.schedule.positions[awaited][0] == device
        return tick + (0 if is_local else self.hop_ticks) < self.tick


def _cells_within(sums: list[float], length: float) -> int:
    """How many cells fit into a tick of some length."""
    return max(place for place, cost in enumerate(sums) if cost <= length)
