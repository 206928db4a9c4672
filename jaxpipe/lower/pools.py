"""How long the values of a lowered schedule live, pool by pool.

A pool holds values of one kind and size on one device. Which values there are follows from the
actions:

    activation        what F reads: from its arrival (or from the F before it on the same device)
    input             what R starts from: from F until R
    stash             what the backward reads: from F, or from R, until B or BW
    weight_stash      what W reads of the forward: from F, or from R, until W
    gradient          what B or BW starts from: from its arrival; on the last stage from F, which
                      runs the head and leaves the gradient of its loss
    weight_gradient   what W reads of the backward: from B until W
    state             of a microbatch in slices, what a slice adds to the state of its stage, such
                      as keys and values: from its F until its own backward, since the forwards of
                      later slices and the backwards of these and of its own read it
    state_gradient    the gradient of that: from the backward of the last slice until its own, but
                      for the last slice, whose state nobody reads

The two pools of W exist in schedules that split some backward into B and W. There a BW is a B and a
W at once, and a stage whose weights are frozen has a B without W. The pool of inputs exists in
schedules with some R; there a forward that nothing follows, of a frozen prefix, also writes its
input somewhere, where it is in nobody's way.

Moments: tick `t` has the moments `5 * t`, when messages arrive, and `5 * t + 1 + phase` for the
four phases of a tick, so a slot of a pool that was read in a tick can be filled again by the next
tick's message.
"""

import enum
from collections import defaultdict

from jaxpipe.lower.slots import Lifetime
from jaxpipe.lower.ticks import Phase, phase_of
from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.schedule import Schedule


class Pool(enum.StrEnum):
    """The kinds of values that outlive an action."""

    ACTIVATION = "activation"
    INPUT = "input"
    STASH = "stash"
    WEIGHT_STASH = "weight_stash"
    GRADIENT = "gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    STATE = "state"
    STATE_GRADIENT = "state_gradient"


def lifetimes(
    schedule: Schedule, ticks: dict[Action, int], *, hop_ticks: int = 0
) -> dict[Pool, list[list[Lifetime]]]:
    """For every pool and device, the lifetimes of its values.

    Values are named by the action that reads them last, except that the stashes and states are
    named by the F that fills them.
    """
    width = len(Phase) + 1
    kinds = {action.kind for action in ticks}
    is_split, recomputes = Kind.W in kinds, Kind.R in kinds
    is_sliced = schedule.num_slices > 1
    found: defaultdict[Pool, list[list[Lifetime]]] = defaultdict(
        lambda: [[] for _ in range(schedule.num_devices)]
    )

    def moment(action: Action) -> int:
        return ticks[action] * width + 1 + phase_of(action.kind)

    def arrival(sender: Action, device: int) -> int:
        if schedule.positions[sender][0] == device:
            return moment(sender)
        return (ticks[sender] + 1 + hop_ticks) * width

    for device in range(schedule.num_devices):
        for action in schedule.actions(device):
            match action.kind:
                case Kind.F:
                    if action.stage > 0:
                        sender = _neighbour(schedule, action, "F", -1)
                        life = Lifetime(action, arrival(sender, device), moment(action))
                        found[Pool.ACTIVATION][device].append(life)
                    if recomputes and not _is_followed(schedule, action):
                        now = moment(action)
                        found[Pool.INPUT][device].append(Lifetime(action, now, now))
                    if is_sliced:
                        end = moment(_last_reader_of_state(schedule, action))
                        found[Pool.STATE][device].append(Lifetime(action, moment(action), end))
                case Kind.R:
                    forward = _neighbour(schedule, action, "F")
                    life = Lifetime(action, moment(forward), moment(action))
                    found[Pool.INPUT][device].append(life)
                case Kind.B | Kind.BW:
                    forward = _neighbour(schedule, action, "F")
                    filled = moment(_stash_writer(schedule, action))
                    found[Pool.STASH][device].append(Lifetime(forward, filled, moment(action)))
                    if action.stage + 1 < schedule.num_stages:
                        sender = _neighbour(schedule, action, "B", +1)
                        arrived = arrival(sender, device)
                    else:
                        arrived = moment(forward)
                    found[Pool.GRADIENT][device].append(Lifetime(action, arrived, moment(action)))
                    if action.slice + 1 < schedule.num_slices:
                        last = action._replace(slice=schedule.num_slices - 1)
                        began = moment(_neighbour(schedule, last, "B"))
                        life = Lifetime(action, began, moment(action))
                        found[Pool.STATE_GRADIENT][device].append(life)
                    if is_split and not _is_followed(schedule, action):
                        life = Lifetime(forward, filled, moment(action))
                        found[Pool.WEIGHT_STASH][device].append(life)
                case _:
                    pass
            if is_split and action.kind in (Kind.W, Kind.BW):
                forward = _neighbour(schedule, action, "F")
                backward = _neighbour(schedule, action, "B")
                filled = moment(_stash_writer(schedule, action))
                end = moment(action)
                found[Pool.WEIGHT_STASH][device].append(Lifetime(forward, filled, end))
                found[Pool.WEIGHT_GRADIENT][device].append(Lifetime(action, moment(backward), end))
    return dict(found)


def _neighbour(schedule: Schedule, action: Action, role: str, step: int = 0) -> Action:
    """The action of `role` for the same microbatch and slice, `step` stages away."""
    return schedule.by_role[role, action.stage + step, action.microbatch, action.slice]


def _is_followed(schedule: Schedule, action: Action) -> bool:
    """Whether a B has a W behind it, or an F a B."""
    role = "W" if action.kind in (Kind.B, Kind.BW) else "B"
    return (role, action.stage, action.microbatch, action.slice) in schedule.by_role


def _last_reader_of_state(schedule: Schedule, forward: Action) -> Action:
    """The backward of the same slice; without backwards, the forward of the last slice."""
    backward = schedule.by_role.get(("B", forward.stage, forward.microbatch, forward.slice))
    last = forward._replace(slice=schedule.num_slices - 1)
    return backward or _neighbour(schedule, last, "F")


def _stash_writer(schedule: Schedule, action: Action) -> Action:
    """The action that fills the stash `action` reads: R where there is one, else F."""
    recompute = schedule.by_role.get(("R", action.stage, action.microbatch, action.slice))
    return recompute or _neighbour(schedule, action, "F")
