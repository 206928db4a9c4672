"""What the actions of a schedule cost, in any one unit of time."""

import dataclasses

from jaxpipe.schedule.action import Action, Kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """Durations of one microbatch's actions on one device's *whole share* of the model.

    A device with `v` chunks spends `forward / v` on each of them, and a microbatch cut into `k`
    token slices costs `forward / k` a slice, so that schedules with different chunks and slices
    compare at equal work.

    Attributes:
        forward: F.
        backward_input: B. `BW` costs `backward_input + backward_weight`.
        backward_weight: W.
        recompute: R.
        hop: Time between the end of an action on one device and the moment its result is usable
            on the next one.
    """

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    recompute: float = 1.0
    hop: float = 0.0

    @property
    def per_microbatch(self) -> float:
        """What one microbatch costs a device without recompute: F + B + W."""
        return self.forward + self.backward_input + self.backward_weight

    def of_kind(self, kind: Kind) -> float:
        """The cost of an action of `kind` on a whole share; updates and heads are free."""
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
            case Kind.U | Kind.H:
                return 0.0

    def of(self, action: Action, *, num_chunks: int = 1, num_slices: int = 1) -> float:
        """The cost of one action when a share has `num_chunks` chunks and `num_slices` slices."""
        return self.of_kind(action.kind) / (num_chunks * num_slices)
