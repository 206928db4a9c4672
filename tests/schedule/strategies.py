"""Random costs, random legal schedules and random corruptions of them."""

import dataclasses
from collections.abc import Callable

from hypothesis import strategies as st

from jaxpipe.schedule import (
    Action,
    Backward,
    Cell,
    Costs,
    Kind,
    Placement,
    Schedule,
    dependencies,
)

costs = st.builds(
    Costs,
    **{
        name: st.floats(0.125, 8.0, width=16)
        for name in ("forward", "backward_input", "backward_weight", "recompute")
    },
    hop=st.floats(0.0, 2.0, width=16),
    overlap=st.floats(0.0, 1.0, width=16),
)


@st.composite
def legal_schedules(draw: st.DrawFn, max_slices: int = 2) -> Schedule:
    """A schedule in any legal order on any placement, such as no generator would give.

    An action is picked at random, again and again, among those whose dependencies are issued.
    """
    num_devices = draw(st.integers(1, 4))
    num_stages = draw(st.integers(1, 6))
    num_microbatches = draw(st.integers(1, 4))
    num_slices = draw(st.integers(1, max_slices))
    path = draw(st.tuples(*[st.integers(0, num_devices - 1)] * num_stages))
    placement = Placement(name="custom", paths=(path,))
    full_from = draw(st.integers(0, num_stages))
    backward = (Backward.NONE,) * full_from + tuple(
        draw(st.sampled_from([Backward.FULL, Backward.INPUT])) for _ in range(full_from, num_stages)
    )
    pending: list[Action] = []
    for stage in range(num_stages):
        for microbatch in range(num_microbatches):
            for slice_ in range(num_slices):
                kinds = [Kind.F]
                if backward[stage] is Backward.FULL:
                    kinds += draw(st.sampled_from([[Kind.BW], [Kind.B, Kind.W]]))
                elif backward[stage] is Backward.INPUT:
                    kinds.append(Kind.B)
                if backward[stage] is not Backward.NONE and draw(st.booleans()):
                    kinds.append(Kind.R)
                pending += [Action(kind, stage, microbatch, slice_) for kind in kinds]
    # Dependencies depend on which actions there are, not on their order.
    unordered = Schedule.of_actions(
        [[action for action in pending if path[action.stage] == d] for d in range(num_devices)],
        name="random",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        num_slices=num_slices,
        placement=placement,
        backward=backward,
    )
    return with_order(unordered, draw(st.randoms(use_true_random=False)).shuffle)


def with_order(schedule: Schedule, shuffle: Callable[[list[Action]], None]) -> Schedule:
    """The same actions, issued in an order that respects all dependencies but no reason."""
    pending = [action for row in schedule.rows for cell in row for action in cell]
    issued: set[Action] = set()
    rows: list[list[Cell]] = [[] for _ in range(schedule.num_devices)]
    while pending:
        ready = [action for action in pending if issued.issuperset(dependencies(schedule, action))]
        shuffle(ready)
        chosen = ready[: max(1, len(ready) // 3)]
        for action in chosen:
            rows[schedule.positions[action][0]].append((action,))
        issued.update(chosen)
        pending = [action for action in pending if action not in issued]
    return dataclasses.replace(schedule, rows=tuple(map(tuple, rows)))


def corrupt(data: st.DataObject, schedule: Schedule) -> Schedule:
    """One cell of a schedule lost, doubled, renamed, sent elsewhere, or put before its reason."""
    draw = data.draw
    devices = [device for device, row in enumerate(schedule.rows) if row]
    device = draw(st.sampled_from(devices))
    rows = [list(row) for row in schedule.rows]
    column = draw(st.integers(0, len(rows[device]) - 1))
    cell = rows[device][column]
    action = cell[0]
    what = draw(st.sampled_from(["lose", "double", "stage", "microbatch", "slice", "move", "last"]))
    if what in ("lose", "move") and action.kind is Kind.U and column == len(rows[device]) - 1:
        # Nothing reads the last update, so a schedule without it is legal: its gradients wait for
        # the next step. Losing it used to fail the suite once in a while.
        what = "double"
    match what:
        case "lose":
            del rows[device][column]
        case "double":
            rows[device].insert(draw(st.integers(0, len(rows[device]))), cell)
        case "stage":
            rows[device][column] = (action._replace(stage=schedule.num_stages),)
        case "microbatch":
            rows[device][column] = (action._replace(microbatch=schedule.num_microbatches),)
        case "slice":
            rows[device][column] = (action._replace(slice=schedule.num_slices),)
        case "move":
            del rows[device][column]
            if schedule.num_devices > 1:
                rows[(device + 1) % schedule.num_devices].append(cell)
        case "last":
            # An F behind everything: its backward comes before it. Without backwards: lost.
            forward = rows[device].pop(_first_forward_with_backward(schedule, device))
            if schedule.backward[forward[0].stage] is not Backward.NONE:
                rows[device].append(forward)
    return dataclasses.replace(schedule, rows=tuple(map(tuple, rows)))


def _first_forward_with_backward(schedule: Schedule, device: int) -> int:
    for column, cell in enumerate(schedule.rows[device]):
        if cell[0].kind is Kind.F and schedule.backward[cell[0].stage] is not Backward.NONE:
            return column
    return 0
