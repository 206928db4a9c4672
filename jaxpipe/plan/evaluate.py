"""All the numbers of one schedule: free-running, in the lockstep loop, and in memory."""

import dataclasses

from jaxpipe.lower.program import lower
from jaxpipe.lower.ticks import TickForm
from jaxpipe.schedule.action import HEADS, Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.simulate import simulate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a schedule costs. Made by `evaluate`.

    Attributes:
        label: What it is: its name, options and transforms.
        schedule: The schedule.
        makespan: Time of one step on free-running devices.
        span: Time of one step of many, run back to back on free-running devices.
        lower_bound: No order of the same actions on the same devices has a smaller makespan.
        bubble: Idle share of the makespan.
        peak_activations: The most that a device keeps from F to W, in activations of one microbatch
            in a device's whole share of the model.
        num_messages: What travels between devices in one step.
        num_ticks: Ticks of the lockstep loop.
        lockstep_cost: Time of the lockstep loop, whose ticks last as long as their busiest device.
        tick_form: What one tick of that loop holds.
        weight_copies: How many devices hold each weight.
    """

    label: str
    schedule: Schedule
    makespan: float
    span: float
    lower_bound: float
    bubble: float
    peak_activations: float
    num_messages: int
    num_ticks: int
    lockstep_cost: float
    tick_form: TickForm
    weight_copies: int


def evaluate(
    schedule: Schedule,
    costs: Costs | None = None,
    *,
    label: str | None = None,
    recomputed_share: float = 1.0,
) -> Evaluation:
    """Simulates and lowers a schedule.

    Args:
        schedule: A valid schedule.
        costs: What its actions cost; by default F = B = W = R = 1.
        label: What to call it; by default its name.
        recomputed_share: What a stage that recomputes keeps from F to R (its input), as a share of
            the whole activation.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> found = evaluate(one_f_one_b(4, 8))
        >>> found.makespan, found.peak_activations, found.num_ticks, found.lockstep_cost
        (33.0, 4.0, 22, 40.0)
    """
    simulation = simulate(schedule, costs)
    program = lower(schedule, costs)
    return Evaluation(
        label=schedule.name if label is None else label,
        schedule=schedule,
        makespan=simulation.makespan,
        span=simulation.span,
        lower_bound=simulation.lower_bound,
        bubble=simulation.bubble,
        peak_activations=peak_activations(schedule, recomputed_share=recomputed_share),
        num_messages=simulation.messages.total,
        num_ticks=program.num_ticks,
        lockstep_cost=program.cost,
        tick_form=program.form,
        weight_copies=len(schedule.placement.paths),
    )


def peak_activations(schedule: Schedule, *, recomputed_share: float = 1.0) -> float:
    """The most that any device keeps, in activations of one microbatch in a device's whole share.

    Args:
        schedule: In what order activations come and go.
        recomputed_share: What a stage that recomputes keeps from F to R, as a share of the whole.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> from jaxpipe.schedule.recompute import insert_recompute
        >>> peak_activations(insert_recompute(gpipe(4, 8)), recomputed_share=0.25)
        2.75
    """
    recomputed = {action[1:4] for action in schedule.positions if action.kind is Kind.R}
    peak = 0.0
    for device in range(schedule.num_devices):
        kept = 0.0
        for cell in schedule.rows[device]:
            # Within a cell the F needs its place before the backward beside it gives up its own.
            for action in sorted(cell, key=lambda action: action.kind is not Kind.F):
                backward = None if action.kind in HEADS else schedule.backward[action.stage]
                if backward in (None, Backward.NONE):
                    continue
                last = Kind.W if backward is Backward.FULL else Kind.B
                if action.kind is Kind.F:
                    kept += recomputed_share if action[1:4] in recomputed else 1.0
                elif action.kind is Kind.R:
                    kept += 1.0 - recomputed_share
                elif action.kind is Kind.BW or action.kind is last:
                    kept -= 1.0
                peak = max(peak, kept)
    return peak / (schedule.num_chunks * schedule.num_slices)
