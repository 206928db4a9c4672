"""What the actions of a schedule cost, in any one unit of time."""

import dataclasses
import functools

from jaxpipe.schedule.action import HEADS, Action, Cell, Kind

_SHORTEST, _LONGEST = 1e-100, 1e100
"""Millions of these still add up, and divide, to finite numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Durations of one microbatch's actions on one device's *whole share* of the model.

    A device with `v` chunks spends `forward / v` on each of them, and a microbatch cut into `k`
    token slices costs `forward / k` a slice, so that schedules with different chunks and slices
    compare at equal work. Stages or slices of unequal cost state their shares instead.

    Attributes:
        forward: F.
        backward_input: B. `BW` costs `backward_input + backward_weight`.
        backward_weight: W.
        recompute: R.
        head: H: head and loss of one microbatch on one device's part of the vocabulary.
        head_statistics: S, which a head in two passes does before its H.
        hop: Time between the end of an action on one device and the moment its result is usable
            on the next one.
        overlap: Of two actions issued together, how much of the shorter one hides behind the
            longer: 0 when they might as well run one after the other, 1 when the longer alone
            counts.
        stage_shares: For every stage, its cost as a multiple of a device's whole share; empty when
            every stage costs `1 / v` of it.
        slice_shares: For every slice, its cost as a multiple of the microbatch's; empty when every
            slice costs `1 / k` of it.
        by_stage: For some kinds, the cost of one microbatch's action in every stage, as measured;
            these take the place of all shares of devices and stages.
    """

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    recompute: float = 1.0
    head: float = 0.0
    head_statistics: float = 0.0
    hop: float = 0.0
    overlap: float = 0.0
    stage_shares: tuple[float, ...] = ()
    slice_shares: tuple[float, ...] = ()
    by_stage: tuple[tuple[Kind, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "by_stage":
                value = tuple(number for _, numbers in value for number in numbers)
            for number in value if isinstance(value, tuple) else (value,):
                if not (number == 0 or _SHORTEST <= number <= _LONGEST):
                    raise ValueError(
                        f"costs must be finite and not negative, but {field.name} is {value}; "
                        "use 0 for what takes no time"
                        if not 0 <= number < float("inf")
                        else f"{field.name} is {value}, which sums of times cannot hold; "
                        "use another unit of time"
                    )
        if self.overlap > 1:
            raise ValueError(
                f"overlap is a share between 0 and 1, but is {self.overlap}; use overlap=1 when "
                "the shorter of two actions hides behind the longer entirely"
            )

    @functools.cached_property
    def _measured(self) -> dict[Kind, tuple[float, ...]]:
        return dict(self.by_stage)

    @property
    def per_microbatch(self) -> float:
        """What one microbatch costs a device without recompute and heads: F + B + W."""
        return self.forward + self.backward_input + self.backward_weight

    def of_kind(self, kind: Kind) -> float:
        """The cost of an action of `kind` on a whole share; updates are free."""
        match kind:
            case Kind.F:
                return self.forward
            case Kind.B:
                return self.backward_input
            case Kind.W:
                return self.backward_weight
            case Kind.BW:
                return self.backward_input + self.backward_weight
            case Kind.R:
                return self.recompute
            case Kind.S:
                return self.head_statistics
            case Kind.H:
                return self.head
            case Kind.U:
                return 0.0

    def of(self, action: Action, *, num_chunks: int = 1, num_slices: int = 1) -> float:
        """The cost of one action when a share has `num_chunks` chunks and `num_slices` slices."""
        slice_share = self.slice_shares[action.slice] if self.slice_shares else 1 / num_slices
        measured = self._measured.get(action.kind)
        if measured is not None:
            return measured[action.stage] * slice_share
        if action.kind in HEADS:
            stage_share = 1.0  # a device has one part of the vocabulary, whatever its chunks
        else:
            stage_share = self.stage_shares[action.stage] if self.stage_shares else 1 / num_chunks
        return self.of_kind(action.kind) * stage_share * slice_share

    def of_cell(self, cell: Cell, *, num_chunks: int = 1, num_slices: int = 1) -> float:
        """The time from the start of a cell to its end: less than the sum where actions overlap."""
        costs = [self.of(action, num_chunks=num_chunks, num_slices=num_slices) for action in cell]
        return sum(costs) - self.overlap * (sum(costs) - max(costs, default=0.0))
