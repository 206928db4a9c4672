"""Whether a schedule has all actions it needs, once each, and no others.

Checked by counting first: half a million actions should not take long, and nearly always all are
there. Only if the counts do not come out is every stage of every microbatch looked at.
"""

from collections import Counter
from collections.abc import Iterator

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.violation import Violation


def cells(schedule: Schedule) -> Iterator[tuple[int, int, Action]]:
    """Device, column and action of everything in the rows, in reading order."""
    for device, row in enumerate(schedule.rows):
        for column, cell in enumerate(row):
            for action in cell:
                yield device, column, action


def find_duplicates(schedule: Schedule) -> Iterator[Violation]:
    """Every action that stands in the rows a second time."""
    num_actions = sum(len(cell) for row in schedule.rows for cell in row)
    num_fused = sum(action.kind is Kind.BW for action in schedule.positions)
    if len(schedule.by_role) == num_actions + num_fused:
        return  # every action has its roles to itself
    first: dict[Action, tuple[int, int]] = {}
    for device, column, action in cells(schedule):
        # The same work at another version of the weights is the same work; updates differ by it.
        same = action if action.kind is Kind.U else action._replace(version=0)
        if same in first:
            other = first[same]
            yield Violation(
                device=device,
                column=column,
                problem=f"{action} stands on device {other[0]}, column {other[1]} already",
                hint="remove one of the two",
            )
        first.setdefault(same, (device, column))


def find_incomplete(schedule: Schedule) -> Iterator[Violation]:
    """Every action that is missing, or not wanted; there must be no duplicates."""
    if _is_plainly_complete(schedule):
        return
    by_role = schedule.by_role
    found = {role[0] for role in by_role}
    heads = [kind for kind in (Kind.S, Kind.H) if kind in found or "S" in found]
    for microbatch in range(schedule.num_microbatches):
        for slice_ in range(schedule.num_slices):
            for kind in heads:
                for part in range(schedule.num_devices):
                    if (kind.value, part, microbatch, slice_) not in by_role:
                        yield _missing(part, Action(kind, part, microbatch, slice_))
            for stage in range(schedule.num_stages):
                yield from _completeness_of(schedule, stage, microbatch, slice_)


def _is_plainly_complete(schedule: Schedule) -> bool:
    """Whether every stage has F and a full backward and nothing else: quickly told by counting."""
    counts = Counter(role[0] for role in schedule.by_role)
    num_each = schedule.num_stages * schedule.num_microbatches * schedule.num_slices
    num_fused = sum(action.kind is Kind.BW for action in schedule.positions)
    return (
        set(schedule.backward) == {Backward.FULL}
        and counts["F"] == counts["B"] == counts["W"] == num_each
        and 3 * num_each - num_fused == len(schedule.positions)
        # A BW beside a B or a W of its own takes a role of both, so it would be missing here.
        and all(
            schedule.by_role["B", *action[1:4]] is schedule.by_role["W", *action[1:4]]
            for action in schedule.positions
            if action.kind is Kind.BW
        )
    )


def _completeness_of(
    schedule: Schedule, stage: int, microbatch: int, slice_: int
) -> Iterator[Violation]:
    by_role, positions = schedule.by_role, schedule.positions
    backward = schedule.backward[stage]
    forward, input_, weight, recompute = (
        by_role.get((role, stage, microbatch, slice_)) for role in "FBWR"
    )
    # A BW answers to both roles; a B beside it has been overwritten, so the actions are looked up.
    named = {
        kind: Action(kind, stage, microbatch, slice_, forward.version if forward else 0)
        for kind in (Kind.F, Kind.B, Kind.W, Kind.BW)
    }
    fused = named[Kind.BW] in positions
    device = schedule.placement.device(stage, microbatch)

    def too_many(action: Action, why: str) -> Violation:
        on, column = positions[action]
        return Violation(device=on, column=column, problem=f"{action} {why}", hint="remove it")

    if forward is None:
        yield _missing(device, named[Kind.F])
    match backward:
        case Backward.FULL:
            if fused:
                for kind in (Kind.B, Kind.W):
                    if named[kind] in positions:
                        yield too_many(named[kind], f"repeats what {named[Kind.BW]} does")
            elif input_ is None and weight is None:
                yield _missing(device, named[Kind.BW], " (or its B and W)")
            elif input_ is None:
                yield _missing(device, named[Kind.B])
            elif weight is None:
                yield _missing(device, named[Kind.W])
        case Backward.INPUT:
            if input_ is None:
                yield _missing(device, named[Kind.B])
            elif weight is not None:
                yield too_many(weight, f"computes weight gradients of frozen stage {stage}")
        case Backward.NONE:
            for action in dict.fromkeys((input_, weight, recompute)):
                if action is not None:
                    yield too_many(action, f"is not wanted: stage {stage} has no backward")


def _missing(device: int, action: Action, also: str = "") -> Violation:
    return Violation(
        device=device, problem=f"{action}{also} is missing", hint=f"add it to row {device}"
    )
