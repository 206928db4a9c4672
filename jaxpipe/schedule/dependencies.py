"""What an action waits for: the one rule that validator, simulator and lowering share.

    F   the F of the stage before, and of the slice before in the same stage (its state)
    R   its own F
    B   its own F or R, the B of the stage after (or the heads, where the vocabulary is shared out),
        and the B of the slice after in the same stage (the gradient of its state)
    W   its own B
    H   the F of the last stage; where a head takes two passes, the S of all parts
    S   the F of the last stage
    U   the update before, and every weight gradient its stage has computed since

Wherever B stands, BW counts as well. An action that reads a later version of the weights than the
initial one also waits for the update that makes it. Besides, a device issues its own actions in the
order of its row; that order is in the schedule and not repeated here.
"""

from collections.abc import Iterator

from jaxpipe.schedule.action import HEADS, Action, Kind
from jaxpipe.schedule.schedule import Role, Schedule


def dependencies(schedule: Schedule, action: Action) -> tuple[Action, ...]:
    """The actions that must have ended before `action` starts, as they stand in the schedule.

    Raises:
        ValueError: If the schedule lacks one of them.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> schedule = one_f_one_b(2, 4)
        >>> [str(awaited) for awaited in dependencies(schedule, Action(Kind.BW, 0, 3))]
        ['0F3', '1BW3']
    """
    by_role = schedule.by_role
    try:
        return tuple([by_role[role] for role in awaited_roles(schedule, action)])
    except KeyError as missing:
        kind, stage, microbatch, slice_ = missing.args[0]
        name = Action(Kind(kind), stage, microbatch, slice_)
        raise ValueError(
            f"{action} waits for {name}, which the schedule {schedule.name!r} does not have; "
            "jaxpipe.schedule.validate lists everything that is missing"
        ) from None


def awaited_roles(schedule: Schedule, action: Action) -> list[Role]:
    """The roles of the actions that `action` waits for, whether or not the schedule has them."""
    kind, stage, microbatch, slice_, version = action
    by_role = schedule.by_role
    roles: list[Role] = []
    match kind:
        case Kind.F:
            if stage > 0:
                roles.append(("F", stage - 1, microbatch, slice_))
            if slice_ > 0:
                roles.append(("F", stage, microbatch, slice_ - 1))
        case Kind.R:
            roles.append(("F", stage, microbatch, slice_))
        case Kind.B | Kind.BW:
            recompute: Role = ("R", stage, microbatch, slice_)
            roles.append(recompute if recompute in by_role else ("F", stage, microbatch, slice_))
            if stage + 1 < schedule.num_stages:
                roles.append(("B", stage + 1, microbatch, slice_))
            elif ("H", 0, microbatch, slice_) in by_role:
                roles += [("H", part, microbatch, slice_) for part in range(schedule.num_devices)]
            if slice_ + 1 < schedule.num_slices:
                roles.append(("B", stage, microbatch, slice_ + 1))
        case Kind.W:
            roles.append(("B", stage, microbatch, slice_))
        case Kind.H if ("S", 0, microbatch, slice_) in by_role:
            roles += [("S", part, microbatch, slice_) for part in range(schedule.num_devices)]
        case Kind.H | Kind.S:
            roles.append(("F", schedule.num_stages - 1, microbatch, slice_))
        case Kind.U:
            roles += _before_update(schedule, action)
            return roles
    if version > 0 and kind not in HEADS:
        roles.append(("U", stage, None, version))
    return roles


def _before_update(schedule: Schedule, update: Action) -> Iterator[Role]:
    """The update before, and the weight gradients since, found by walking back along the row."""
    device, column = schedule.positions[update]
    for cell in reversed(schedule.rows[device][:column]):
        for action in reversed(cell):
            if action.stage != update.stage:
                continue
            if action.kind is Kind.U:
                yield ("U", action.stage, None, action.version)
                return
            if action.kind in (Kind.W, Kind.BW):
                yield ("W", action.stage, action.microbatch, action.slice)
