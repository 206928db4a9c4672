"""A program as integers: what every device does in every tick, for the compiled loop.

The table is an argument of the compiled step, not part of it, so that another schedule of the same
sizes runs in the same executable. A row is one tick of one device; its columns say which messages
arrive into which slots, then what the forward does, then the backward, and last what is left of a
backward that was split: the gradient of the weights.

Messages cross in every tick, wanted or not. Slot 0 of the two received pools is where those nobody
wants land; values start at slot 1. The other pools have no such slot: only actions write to them.

A program that splits backwards runs every BW as a B and a W in one tick.
"""

import dataclasses
import enum

import numpy as np

from jaxpipe.lower.pools import Pool
from jaxpipe.lower.program import Program
from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.schedule import Backward

UNWANTED = 0
"""The slot of the received pools for messages that carry nothing."""


class Column(enum.IntEnum):
    """The columns of a table, in order."""

    ARRIVING_ACTIVATION = 0  # slot of the activation pool for the message from the stage before
    ARRIVING_GRADIENT = 1  # slot of the gradient pool for the message from the stage after
    FORWARD = 2  # 1 where a forward runs, else 0
    FORWARD_STAGE = 3
    FORWARD_MICROBATCH = 4
    FORWARD_ACTIVATION = 5  # slot it reads; unwanted on the first stage
    FORWARD_STASH = 6  # slot it fills
    FORWARD_GRADIENT = 7  # slot for the gradient of the loss; unwanted but on the last stage
    FORWARD_WEIGHT_STASH = 8  # slot it fills with what W reads
    BACKWARD = 9  # 1 where a backward runs, or its part B, else 0
    BACKWARD_STAGE = 10
    BACKWARD_MICROBATCH = 11
    BACKWARD_GRADIENT = 12  # slot it reads
    BACKWARD_STASH = 13  # slot it reads
    BACKWARD_WEIGHT_STASH = 14  # slot it reads
    BACKWARD_KEPT = 15  # slot that B fills for W
    WEIGHT = 16  # 1 where W runs, else 0
    WEIGHT_STAGE = 17
    WEIGHT_MICROBATCH = 18
    WEIGHT_STASH = 19  # slot it reads
    WEIGHT_KEPT = 20  # slot it reads


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSizes:
    """The sizes that a compiled step is compiled for.

    Attributes:
        num_ticks: Rows of the table.
        num_activations: Slots of received activations, with the one for unwanted messages.
        num_stashes: Stash slots.
        num_gradients: Slots of received gradients, with the one for unwanted messages.
        num_weight_stashes: Slots of what W reads of the forward; 0 if no backward is split.
        num_weight_gradients: Slots of what B keeps for W; 0 if no backward is split.
    """

    num_ticks: int
    num_activations: int
    num_stashes: int
    num_gradients: int
    num_weight_stashes: int = 0
    num_weight_gradients: int = 0

    @property
    def is_split(self) -> bool:
        """Whether backwards run as B and W."""
        return self.num_weight_gradients > 0

    @classmethod
    def of(cls, program: Program) -> "TableSizes":
        """The least sizes that hold `program`."""
        return cls(
            num_ticks=program.num_ticks,
            num_activations=1 + program.max_slots(Pool.ACTIVATION),
            num_stashes=program.max_slots(Pool.STASH),
            num_gradients=1 + program.max_slots(Pool.GRADIENT),
            num_weight_stashes=program.max_slots(Pool.WEIGHT_STASH),
            num_weight_gradients=program.max_slots(Pool.WEIGHT_GRADIENT),
        )

    def holds(self, other: "TableSizes") -> bool:
        """Whether a step compiled for these sizes can run a table of the `other` sizes."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return self.is_split == other.is_split and all(
            own >= needed for own, needed in zip(mine, theirs, strict=True)
        )

    def join(self, other: "TableSizes") -> "TableSizes":
        """The least sizes that hold both."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return TableSizes(**{name: max(mine[name], theirs[name]) for name in mine})


def encode(program: Program, num_ticks: int | None = None) -> np.ndarray:
    """The table of a program whose actions are F, BW, B and W and whose placement is a loop.

    Args:
        program: What to encode.
        num_ticks: Rows of the table, by default as many as the program has ticks; in rows beyond
            that every device idles.

    Returns:
        int32 `[num_ticks, num_devices, len(Column)]`.

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
    table = np.zeros((num_ticks, schedule.num_devices, len(Column)), np.int32)
    last_stage = schedule.num_stages - 1
    is_split = TableSizes.of(program).is_split
    for action, tick in program.ticks.items():
        device, _ = schedule.positions[action]
        stage, microbatch = action.stage, action.microbatch
        row = table[tick, device]
        arrival = tick + 1
        if action.kind is Kind.F:
            row[Column.FORWARD] = 1
            row[Column.FORWARD_STAGE] = stage
            row[Column.FORWARD_MICROBATCH] = microbatch
            row[Column.FORWARD_STASH] = program.slots[Pool.STASH][action]
            row[Column.FORWARD_WEIGHT_STASH] = _weight_slot(program, Pool.WEIGHT_STASH, action)
            if stage > 0:
                row[Column.FORWARD_ACTIVATION] = _received(program, Pool.ACTIVATION, action)
            if stage == last_stage:
                backward = schedule.by_role["B", stage, microbatch, action.slice]
                row[Column.FORWARD_GRADIENT] = _received(program, Pool.GRADIENT, backward)
            else:
                receiver = schedule.by_role["F", stage + 1, microbatch, action.slice]
                slot = _received(program, Pool.ACTIVATION, receiver)
                neighbour, _ = schedule.positions[receiver]
                table[arrival, neighbour, Column.ARRIVING_ACTIVATION] = slot
        if action.kind in (Kind.B, Kind.BW):
            forward = schedule.by_role["F", stage, microbatch, action.slice]
            weight = schedule.by_role["W", stage, microbatch, action.slice]
            row[Column.BACKWARD_WEIGHT_STASH] = _weight_slot(program, Pool.WEIGHT_STASH, forward)
            row[Column.BACKWARD_KEPT] = _weight_slot(program, Pool.WEIGHT_GRADIENT, weight)
            row[Column.BACKWARD] = 1
            row[Column.BACKWARD_STAGE] = stage
            row[Column.BACKWARD_MICROBATCH] = microbatch
            row[Column.BACKWARD_GRADIENT] = _received(program, Pool.GRADIENT, action)
            row[Column.BACKWARD_STASH] = program.slots[Pool.STASH][forward]
            if stage > 0:
                receiver = schedule.by_role["B", stage - 1, microbatch, action.slice]
                slot = _received(program, Pool.GRADIENT, receiver)
                neighbour, _ = schedule.positions[receiver]
                table[arrival, neighbour, Column.ARRIVING_GRADIENT] = slot
        if action.kind is Kind.W or (action.kind is Kind.BW and is_split):
            forward = schedule.by_role["F", stage, microbatch, action.slice]
            row[Column.WEIGHT] = 1
            row[Column.WEIGHT_STAGE] = stage
            row[Column.WEIGHT_MICROBATCH] = microbatch
            row[Column.WEIGHT_STASH] = _weight_slot(program, Pool.WEIGHT_STASH, forward)
            row[Column.WEIGHT_KEPT] = _weight_slot(program, Pool.WEIGHT_GRADIENT, action)
    return table


def _received(program: Program, pool: Pool, value: Action) -> int:
    """The slot of a value in a received pool, past the one for unwanted messages."""
    return UNWANTED + 1 + program.slots[pool][value]


def _weight_slot(program: Program, pool: Pool, value: Action) -> int:
    """The slot of a value in a pool of W, which a program without W does not have."""
    return program.slots[pool][value] if pool in program.slots else 0


def _check_encodable(program: Program) -> None:
    schedule = program.schedule
    kinds = {action.kind for action in program.ticks} - {Kind.F, Kind.BW, Kind.B, Kind.W}
    if kinds:
        raise ValueError(
            f"the compiled loop runs F, B, W and BW, but {schedule.name!r} also has "
            f"{', '.join(sorted(kinds))}; use a schedule without them, such as '1f1b' or 'zb_h1'"
        )
    without = [stage for stage, what in enumerate(schedule.backward) if what is not Backward.FULL]
    if without:
        raise ValueError(
            f"the compiled loop runs the full backward of every stage, but {schedule.name!r} has "
            f"none, or not all of it, in stages {without}; use a schedule that trains every stage, "
            "such as '1f1b'"
        )
    if program.hop_ticks:
        raise ValueError(
            "the compiled loop receives a message in the tick after it was made, but this program "
            f"of {schedule.name!r} lets it travel {program.hop_ticks} tick(s) longer; lower it "
            "with hop_ticks=0"
        )
    if schedule.num_slices > 1:
        raise ValueError(
            f"the compiled loop runs whole microbatches, but {schedule.name!r} cuts each into "
            f"{schedule.num_slices} slices; use a schedule without slices, such as '1f1b'"
        )
    devices, stages = schedule.num_devices, schedule.num_stages
    loop = tuple(stage % devices for stage in range(stages))
    if schedule.placement.paths != (loop,) or (devices == 1 and stages > 1):
        raise ValueError(
            "the compiled loop sends each result to the next device in the ring, but placement "
            f"{schedule.placement.name!r} puts stages on {schedule.placement.paths}; use a "
            f"schedule whose stages lie on {loop}"
        )
