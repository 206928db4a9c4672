"""A program as integers: what every device does in every tick, for the compiled loop.

The table is an argument of the compiled step, not part of it, so that another schedule of the same
sizes runs in the same executable. A row is one tick of one device. Its columns say what each phase
of the tick does, in the order in which they run: the forward, the second forward of a
recomputation, the backward or its part B, and the part W. Behind these stands one column for every
wire of the placement (`jaxpipe.lower.wires`): the slot that takes the message which arrives there.
Where microbatches come in slices, the slots of the states of all slices of the microbatch at hand
stand behind those (`StateColumns`).

Messages cross in every tick, wanted or not. Slot 0 of the two received pools is where those nobody
wants land; values start at slot 1. The other pools have no such slot: only actions write to them.

A message stands in the row of the tick in which the loop receives it. Activations that leave a
device between the forward and the backward of a tick arrive at the end of that same tick; gradients
leave at the top of the next one and arrive behind its forward. With `hop_ticks=1` both leave at the
top of the next tick and arrive at its end.

A program that splits backwards runs every BW as a B and a W in one tick.
"""

import dataclasses
import enum

import numpy as np

from jaxpipe.lower.pools import Pool
from jaxpipe.lower.program import Program
from jaxpipe.lower.wires import wires_of
from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.placement import Placement
from jaxpipe.schedule.schedule import Backward, Schedule

UNWANTED = 0
"""The slot of the received pools for messages that carry nothing."""


class Column(enum.IntEnum):
    """The columns of a table, in order; those of the wires and of the states follow."""

    FORWARD = 0  # what F does: a `Forward`, or 0 where none runs
    FORWARD_STAGE = 1
    FORWARD_CHUNK = 2
    FORWARD_MICROBATCH = 3
    FORWARD_SLICE = 4
    FORWARD_ACTIVATION = 5  # slot it reads; unwanted on the first stage
    FORWARD_STASH = 6  # slot it fills
    FORWARD_WEIGHT_STASH = 7  # slot it fills with what W reads
    FORWARD_INPUT = 8  # slot it fills with its input, for R
    FORWARD_GRADIENT = 9  # slot for the gradient of the loss; unwanted but on the last stage
    FORWARD_TURN = 10  # slot for its result if the next stage lies here, too; else unwanted
    RECOMPUTE = 11  # 1 where R runs, else 0
    RECOMPUTE_STAGE = 12
    RECOMPUTE_CHUNK = 13
    RECOMPUTE_MICROBATCH = 14
    RECOMPUTE_SLICE = 15
    RECOMPUTE_INPUT = 16  # slot it reads
    RECOMPUTE_STASH = 17  # slot it fills
    RECOMPUTE_WEIGHT_STASH = 18  # slot it fills with what W reads
    BACKWARD = 19  # what BW or B does: a `BackwardPass`, or 0 where none runs
    BACKWARD_STAGE = 20
    BACKWARD_CHUNK = 21
    BACKWARD_MICROBATCH = 22
    BACKWARD_SLICE = 23
    BACKWARD_GRADIENT = 24  # slot it reads
    BACKWARD_STASH = 25  # slot it reads
    BACKWARD_WEIGHT_STASH = 26  # slot it reads
    BACKWARD_KEPT = 27  # slot that B fills for W
    BACKWARD_TURN = 28  # slot for its result if the stage before lies here, too; else unwanted
    WEIGHT = 29  # 1 where W runs, else 0
    WEIGHT_STAGE = 30
    WEIGHT_CHUNK = 31
    WEIGHT_MICROBATCH = 32
    WEIGHT_SLICE = 33
    WEIGHT_STASH = 34  # slot it reads
    WEIGHT_KEPT = 35  # slot it reads


class Forward(enum.IntEnum):
    """What a forward leaves behind. No number stands for a backward, too: sets hold both."""

    KEEPING = 1  # the stash of its layers
    PASSING = 2  # its input, where an R will want it, or nothing


class BackwardPass(enum.IntEnum):
    """What a backward computes."""

    FULL = 3  # all that its stage needs: as one BW, or as B where backwards are split
    INPUT = 4  # the gradient of the input alone, of a stage whose weights are frozen


Variant = Forward | BackwardPass


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSizes:
    """What a compiled step is compiled for.

    Attributes:
        num_ticks: Rows of the table.
        num_activations: Slots of received activations, with the one for unwanted messages.
        num_stashes: Stash slots.
        num_gradients: Slots of received gradients, with the one for unwanted messages.
        num_inputs: Slots of inputs kept for R; 0 if nothing is recomputed.
        num_weight_stashes: Slots of what W reads of the forward; 0 if no backward is split.
        num_weight_gradients: Slots of what B keeps for W; 0 if no backward is split.
        num_states: Slots of what a slice adds to the state of a stage; 0 without slices.
        num_state_gradients: Slots of the gradients of that.
        num_slices: Slices of every microbatch.
        hop_ticks: Ticks that a message travels beyond the tick border.
        variants: The forwards and backwards that occur.
    """

    num_ticks: int
    num_activations: int
    num_stashes: int
    num_gradients: int
    num_inputs: int = 0
    num_weight_stashes: int = 0
    num_weight_gradients: int = 0
    num_states: int = 0
    num_state_gradients: int = 0
    num_slices: int = 1
    hop_ticks: int = 0
    variants: frozenset[Variant] = frozenset({Forward.KEEPING, BackwardPass.FULL})

    @property
    def is_split(self) -> bool:
        """Whether backwards run as B and W."""
        return self.num_weight_gradients > 0

    @property
    def recomputes(self) -> bool:
        """Whether R occurs."""
        return self.num_inputs > 0

    @classmethod
    def of(cls, program: Program) -> "TableSizes":
        """The least sizes that hold `program`."""
        return cls(
            num_ticks=program.num_ticks,
            num_activations=1 + program.max_slots(Pool.ACTIVATION),
            num_stashes=program.max_slots(Pool.STASH),
            num_gradients=1 + program.max_slots(Pool.GRADIENT),
            num_inputs=program.max_slots(Pool.INPUT),
            num_weight_stashes=program.max_slots(Pool.WEIGHT_STASH),
            num_weight_gradients=program.max_slots(Pool.WEIGHT_GRADIENT),
            num_states=program.max_slots(Pool.STATE),
            num_state_gradients=program.max_slots(Pool.STATE_GRADIENT),
            num_slices=program.schedule.num_slices,
            hop_ticks=program.hop_ticks,
            variants=_variants(program.schedule),
        )

    def holds(self, other: "TableSizes") -> bool:
        """Whether a step compiled for these sizes can run a table of the `other` sizes."""
        mine, theirs = self._counts(), other._counts()
        return (
            self.can_join(other)
            and self.variants >= other.variants
            and all(mine[name] >= theirs[name] for name in mine)
        )

    def can_join(self, other: "TableSizes") -> bool:
        """Whether one step can run tables of both sizes."""
        return (
            self.is_split == other.is_split
            and self.hop_ticks == other.hop_ticks
            and self.num_slices == other.num_slices
        )

    def join(self, other: "TableSizes") -> "TableSizes":
        """The least sizes that hold both.

        Raises:
            ValueError: If their messages travel differently, only one of them splits backwards, or
                they cut microbatches into different numbers of slices.
        """
        if not self.can_join(other):
            raise ValueError(
                "no step runs both a program that splits backwards and one that does not, nor "
                "programs whose messages travel for different numbers of ticks, nor such with "
                f"different numbers of slices; found is_split={self.is_split}, {other.is_split}, "
                f"hop_ticks={self.hop_ticks}, {other.hop_ticks} and num_slices={self.num_slices}, "
                f"{other.num_slices}"
            )
        mine, theirs = self._counts(), other._counts()
        largest = {name: max(mine[name], theirs[name]) for name in mine}
        return dataclasses.replace(self, variants=self.variants | other.variants, **largest)

    def _counts(self) -> dict[str, int]:
        fields = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in fields if name.startswith("num_")}


def encode(program: Program, num_ticks: int | None = None) -> np.ndarray:
    """The table of a program whose actions are F, R, BW, B and W.

    Args:
        program: What to encode.
        num_ticks: Rows of the table, by default as many as the program has ticks; in rows beyond
            that every device idles.

    Returns:
        int32 `[num_ticks, num_devices, num_columns(placement, num_slices)]`.

    Raises:
        ValueError: If the program holds what the compiled loop does not run, or needs more ticks.
    """
    schedule = program.schedule
    _check_encodable(program)
    num_ticks = num_ticks or program.num_ticks
    if num_ticks < program.num_ticks:
        raise ValueError(
            f"{schedule.name!r} takes {program.num_ticks} ticks, more than num_ticks={num_ticks}"
        )
    encoder = _Encoder(program, num_ticks)
    for action, tick in program.ticks.items():
        encoder.add(action, tick)
    return encoder.table


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateColumns:
    """Where a row names the slots of the states of all slices of a microbatch, one column each.

    A slice reads the states of the slices before it, its forward fills its own, and its backward
    adds to the gradients of those before. Without slices there are no such columns.

    Attributes:
        forward: For the microbatch of F, the slots up to that of its own slice.
        recompute: Likewise for R.
        backward: Likewise for BW or B.
        gradient: The slots of their gradients.
    """

    forward: range
    recompute: range
    backward: range
    gradient: range

    @classmethod
    def of(cls, placement: Placement, num_slices: int) -> "StateColumns":
        """The columns of the tables of a placement."""
        count = num_slices if num_slices > 1 else 0
        first = len(Column) + len(wires_of(placement))
        starts = [first + number * count for number in range(4)]
        forward, recompute, backward, gradient = (range(each, each + count) for each in starts)
        return cls(forward=forward, recompute=recompute, backward=backward, gradient=gradient)


def num_columns(placement: Placement, num_slices: int = 1) -> int:
    """Columns of the tables of a placement."""
    return StateColumns.of(placement, num_slices).gradient.stop


class _Encoder:
    """A table under construction."""

    def __init__(self, program: Program, num_ticks: int) -> None:
        self.program = program
        self.schedule = program.schedule
        self.is_split = Pool.WEIGHT_GRADIENT in program.slots
        wires = wires_of(self.schedule.placement)
        self.wire_columns = {
            (wire.pool, pair): len(Column) + number
            for number, wire in enumerate(wires)
            for pair in wire.pairs
        }
        num_slices = self.schedule.num_slices
        self.state_columns = StateColumns.of(self.schedule.placement, num_slices)
        columns = num_columns(self.schedule.placement, num_slices)
        self.table = np.zeros((num_ticks, self.schedule.num_devices, columns), np.int32)

    def add(self, action: Action, tick: int) -> None:
        """Writes what one action does in its tick, and where its result goes."""
        match action.kind:
            case Kind.F:
                self._forward(action, tick)
            case Kind.R:
                self._recompute(action, tick)
            case Kind.W:
                self._weight(action, tick)
            case _:
                self._backward(action, tick)
                if action.kind is Kind.BW and self.is_split:
                    self._weight(action, tick)

    def _forward(self, action: Action, tick: int) -> None:
        row = self._row(action, tick)
        row[Column.FORWARD] = _forward_variant(self.schedule, action)
        self._identify(row, Column.FORWARD_STAGE, action)
        self._states(row, self.state_columns.forward, action)
        if action.stage > 0:
            row[Column.FORWARD_ACTIVATION] = self._received(Pool.ACTIVATION, action)
        if row[Column.FORWARD] == Forward.KEEPING:
            row[Column.FORWARD_STASH] = self._slot(Pool.STASH, action)
            row[Column.FORWARD_WEIGHT_STASH] = self._slot(Pool.WEIGHT_STASH, action)
        else:
            recompute = self._peer("R", action)
            row[Column.FORWARD_INPUT] = self._slot(Pool.INPUT, recompute or action)
        if receiver := self._peer("F", action, +1):
            self._send(Pool.ACTIVATION, action, receiver, Column.FORWARD_TURN, tick)
        elif backward := self._peer("B", action):
            row[Column.FORWARD_GRADIENT] = self._received(Pool.GRADIENT, backward)

    def _recompute(self, action: Action, tick: int) -> None:
        row, forward = self._row(action, tick), self._peer("F", action)
        row[Column.RECOMPUTE] = 1
        self._identify(row, Column.RECOMPUTE_STAGE, action)
        self._states(row, self.state_columns.recompute, action)
        row[Column.RECOMPUTE_INPUT] = self._slot(Pool.INPUT, action)
        row[Column.RECOMPUTE_STASH] = self._slot(Pool.STASH, forward)
        row[Column.RECOMPUTE_WEIGHT_STASH] = self._slot(Pool.WEIGHT_STASH, forward)

    def _backward(self, action: Action, tick: int) -> None:
        row, forward = self._row(action, tick), self._peer("F", action)
        weight = self._peer("W", action)
        row[Column.BACKWARD] = BackwardPass.FULL if weight else BackwardPass.INPUT
        self._identify(row, Column.BACKWARD_STAGE, action)
        self._states(row, self.state_columns.backward, action)
        for slice_, column in enumerate(self.state_columns.gradient[: action.slice + 1]):
            backward = self._peer("B", action._replace(slice=slice_))
            row[column] = self._slot(Pool.STATE_GRADIENT, backward)
        row[Column.BACKWARD_GRADIENT] = self._received(Pool.GRADIENT, action)
        row[Column.BACKWARD_STASH] = self._slot(Pool.STASH, forward)
        row[Column.BACKWARD_WEIGHT_STASH] = self._slot(Pool.WEIGHT_STASH, forward)
        if weight:
            row[Column.BACKWARD_KEPT] = self._slot(Pool.WEIGHT_GRADIENT, weight)
        if receiver := self._peer("B", action, -1):
            self._send(Pool.GRADIENT, action, receiver, Column.BACKWARD_TURN, tick)

    def _weight(self, action: Action, tick: int) -> None:
        row, forward = self._row(action, tick), self._peer("F", action)
        row[Column.WEIGHT] = 1
        self._identify(row, Column.WEIGHT_STAGE, action)
        row[Column.WEIGHT_STASH] = self._slot(Pool.WEIGHT_STASH, forward)
        row[Column.WEIGHT_KEPT] = self._slot(Pool.WEIGHT_GRADIENT, action)

    def _row(self, action: Action, tick: int) -> np.ndarray:
        return self.table[tick, self.schedule.positions[action][0]]

    def _identify(self, row: np.ndarray, first: Column, action: Action) -> None:
        """Fills stage, chunk, microbatch and slice, which stand side by side in every phase."""
        placement = self.schedule.placement
        chunk = placement.chunk(action.stage, action.microbatch or 0)
        row[first : first + 4] = (action.stage, chunk, action.microbatch, action.slice)

    def _states(self, row: np.ndarray, columns: range, action: Action) -> None:
        """Names the states of the slices up to this one."""
        for slice_, column in enumerate(columns[: action.slice + 1]):
            forward = self._peer("F", action._replace(slice=slice_))
            row[column] = self._slot(Pool.STATE, forward)

    def _send(self, pool: Pool, action: Action, receiver: Action, turn: Column, tick: int) -> None:
        """Says where the result of `action` goes: into a slot here or into another device's."""
        source, target = (self.schedule.positions[each][0] for each in (action, receiver))
        slot = self._received(pool, receiver)
        if source == target:
            self.table[tick, source, turn] = slot
            return
        leaves_at_once = pool is Pool.ACTIVATION and self.program.hop_ticks == 0
        arrival = tick if leaves_at_once else tick + 1
        self.table[arrival, target, self.wire_columns[pool, (source, target)]] = slot

    def _peer(self, role: str, action: Action, step: int = 0) -> Action | None:
        """The action of `role` for the same microbatch, `step` stages away."""
        key = (role, action.stage + step, action.microbatch, action.slice)
        return self.schedule.by_role.get(key)

    def _slot(self, pool: Pool, value: Action | None) -> int:
        """The slot of a value, or 0 where the program has no such value."""
        if value is None or pool not in self.program.slots:
            return 0
        return self.program.slots[pool].get(value, 0)

    def _received(self, pool: Pool, value: Action) -> int:
        """The slot of a value in a received pool, past the one for unwanted messages."""
        return UNWANTED + 1 + self.program.slots[pool][value]


def _variants(schedule: Schedule) -> frozenset[Variant]:
    """The forwards and backwards of a schedule."""
    found: set[Variant] = set()
    for device in range(schedule.num_devices):
        for action in schedule.actions(device):
            if action.kind is Kind.F:
                found.add(_forward_variant(schedule, action))
            elif action.kind in (Kind.B, Kind.BW):
                is_full = schedule.backward[action.stage] is Backward.FULL
                found.add(BackwardPass.FULL if is_full else BackwardPass.INPUT)
    return frozenset(found)


def _forward_variant(schedule: Schedule, action: Action) -> Forward:
    role = (action.stage, action.microbatch, action.slice)
    has_backward, has_recompute = (
        ("B", *role) in schedule.by_role,
        ("R", *role) in schedule.by_role,
    )
    return Forward.KEEPING if has_backward and not has_recompute else Forward.PASSING


def _check_encodable(program: Program) -> None:
    schedule = program.schedule
    runnable = (Kind.F, Kind.R, Kind.BW, Kind.B, Kind.W)
    if kinds := {action.kind for action in program.ticks}.difference(runnable):
        raise ValueError(
            f"the compiled loop runs F, R, BW, B and W, but {schedule.name!r} also has "
            f"{', '.join(sorted(kinds))}; use a schedule without them, such as '1f1b' or 'zb_h1'"
        )
