"""The executable specification of a schedule: everything a legal one must satisfy.

    sizes       one row per device, one entry of `backward` per stage, a placement on these devices
    ids         stage, microbatch, slice and version of every action in range
    place       every action on the device that holds its stage
    complete    for every stage, microbatch and slice one F and what `backward` asks of the stage:
                one BW or one B and one W (full), one B (input), nothing (none); at most one R,
                and only where there is a backward; heads on all devices or on none,
                and with an S an H
    order       every action behind what it waits for in the same row, so slices ascend in F and
                descend in B, R stands between F and B, and W behind B
    acyclic     the devices do not wait for each other in a cycle
    versions    a stage's updates make versions 1, 2, 3, ...; an action reads a version that exists,
                and the backward of a microbatch the one its forward read
    memory      no device keeps more activations than the cap, where one is given

All violations are found in one go, each with its place and with what would repair it.
"""

from collections import Counter
from collections.abc import Iterator

from jaxpipe.schedule.action import HEADS, Action, Kind
from jaxpipe.schedule.completeness import cells, find_duplicates, find_incomplete
from jaxpipe.schedule.dependencies import awaited_roles
from jaxpipe.schedule.live import peak_live
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.violation import ScheduleError, Violation
from jaxpipe.schedule.walk import DeadlockError, walk

_LISTED = 10_000
"""About how many missing actions are listed one by one."""


def validate(schedule: Schedule, *, activation_cap: int | None = None) -> None:
    """Raises if a schedule breaks a rule, with every violation.

    Args:
        schedule: What to check.
        activation_cap: The most activations a device may keep from F to W, in one stage's
            activation of one slice.

    Raises:
        ScheduleError: If it breaks any.
    """
    violations = find_violations(schedule, activation_cap=activation_cap)
    if violations:
        raise ScheduleError(schedule.name, violations)


def find_violations(schedule: Schedule, *, activation_cap: int | None = None) -> list[Violation]:
    """All broken rules of a schedule; those that a coarser fault would only repeat are left out.

    Example:
        >>> import dataclasses
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> good = gpipe(1, 1)
        >>> backwards = dataclasses.replace(good, rows=(good.rows[0][::-1],))
        >>> print(*find_violations(backwards))
        device 0, column 0: 0BW0 stands before 0F0, which it waits for; move it behind column 1
    """
    violations = list(_sizes(schedule))
    if violations:
        return violations  # ids and places mean nothing yet
    violations += _ids_and_places(schedule)
    if violations:
        return violations  # neither does what is missing, or what waits for what
    violations += find_duplicates(schedule)
    if violations:
        return violations  # nor which of two equal actions is meant
    violations += find_incomplete(schedule)
    deadlock = _find_deadlock(schedule)
    if deadlock is not None:
        # Most cycles come down to actions in the wrong order within a row, which is easier to say.
        violations += list(_order(schedule)) or [_cycle(deadlock)]
    violations += _versions(schedule)
    if activation_cap is not None:
        violations += _memory(schedule, activation_cap)
    return violations


def _sizes(schedule: Schedule) -> Iterator[Violation]:
    for name in ("num_devices", "num_microbatches", "num_slices"):
        size = getattr(schedule, name)
        if size < 1:
            yield Violation(problem=f"{name} is {size}", hint="it must be at least 1")
    for name, found, expected in (
        ("rows", len(schedule.rows), schedule.num_devices),
        ("backward", len(schedule.backward), schedule.num_stages),
    ):
        if found != expected:
            what = "device" if name == "rows" else "stage"
            yield Violation(
                problem=f"{name} has {found} entries for {expected} {what}s",
                hint=f"give one entry per {what}",
            )
    num_actions = sum(len(cell) for row in schedule.rows for cell in row)
    num_forwards = schedule.num_stages * schedule.num_microbatches * schedule.num_slices
    if num_forwards > 10 * num_actions + _LISTED:
        yield Violation(
            problem=f"{schedule.num_stages} stages, {schedule.num_microbatches} microbatches and "
            f"{schedule.num_slices} slices need {num_forwards} forwards, but there are "
            f"{num_actions} actions in all",
            hint="check the sizes; so many missing actions are not listed one by one",
        )
    placement = schedule.placement
    for index, path in enumerate(placement.paths):
        if len(path) != placement.num_stages:
            yield Violation(
                problem=f"path {index} of the placement has {len(path)} stages and path 0 has "
                f"{placement.num_stages}",
                hint="every path leads through all stages",
            )
        for stage, device in enumerate(path):
            if not 0 <= device < schedule.num_devices:
                yield Violation(
                    problem=f"path {index} of the placement puts stage {stage} on device {device}",
                    hint=f"use a device from 0 to {schedule.num_devices - 1}",
                )
    starts = placement.path_starts
    if len(starts) != len(placement.paths) or starts[0] != 0 or list(starts) != sorted(starts):
        yield Violation(
            problem=f"path_starts={starts} of the placement does not share out the microbatches "
            f"among {len(placement.paths)} paths",
            hint="give the first microbatch of each path, ascending from 0",
        )


def _ids_and_places(schedule: Schedule) -> Iterator[Violation]:
    for device, row in enumerate(schedule.rows):
        for column, cell in enumerate(row):
            if not cell:
                yield Violation(
                    device=device,
                    column=column,
                    problem="the cell is empty",
                    hint="leave idle cells out: a schedule holds order, not time",
                )
    placement = schedule.placement
    one_path = placement.paths[0] if len(placement.paths) == 1 else ()
    plain_kinds = (Kind.F, Kind.B, Kind.W, Kind.BW)
    for device, column, action in cells(schedule):
        kind, stage, microbatch, slice_, version = action
        if (
            kind in plain_kinds
            and 0 <= stage < len(one_path)
            and one_path[stage] == device
            and microbatch is not None
            and 0 <= microbatch < schedule.num_microbatches
            and 0 <= slice_ < schedule.num_slices
            and version >= 0
        ):
            continue  # nearly all actions: half a million of them should not take long
        problems = list(_problems_of_ids(schedule, action))
        if not problems:
            problems += _problems_of_place(schedule, device, action)
        for problem, hint in problems:
            yield Violation(device=device, column=column, problem=f"{action}: {problem}", hint=hint)


def _problems_of_ids(schedule: Schedule, action: Action) -> Iterator[tuple[str, str]]:
    kind, stage, microbatch, slice_, version = action
    num_stages = schedule.num_devices if kind in HEADS else schedule.num_stages
    if not 0 <= stage < num_stages:
        what = "vocabulary part" if kind in HEADS else "stage"
        yield f"there is no {what} {stage}", f"use one from 0 to {num_stages - 1}"
    if kind is Kind.U:
        if microbatch is not None:
            yield "an update belongs to no microbatch", f"write {stage}U@<version>"
        if version < 1:
            yield f"an update cannot make version {version}", "make version 1 or later"
    elif microbatch is None or not 0 <= microbatch < schedule.num_microbatches:
        last = schedule.num_microbatches - 1
        yield f"there is no microbatch {microbatch}", f"use one from 0 to {last}"
    if not 0 <= slice_ < schedule.num_slices:
        yield f"there is no slice {slice_}", f"use one from 0 to {schedule.num_slices - 1}"
    if version < 0:
        yield f"there is no version {version}", "use 0, the initial weights, or a later one"


def _problems_of_place(
    schedule: Schedule, device: int, action: Action
) -> Iterator[tuple[str, str]]:
    if action.kind in HEADS:
        placed = action.stage
    else:
        placed = schedule.placement.device(action.stage, action.microbatch or 0)
    if action.kind is Kind.U and any(
        path[action.stage] == device for path in schedule.placement.paths
    ):
        return
    if placed != device:
        yield f"its place is device {placed}", f"move it to row {placed}"


def _order(schedule: Schedule) -> Iterator[Violation]:
    by_role, positions = schedule.by_role, schedule.positions
    for device, column, action in cells(schedule):
        for role in awaited_roles(schedule, action):
            awaited = by_role.get(role)
            if awaited is None:
                continue
            on, at = positions[awaited]
            if on != device or at < column:
                continue
            if at == column:
                yield Violation(
                    device=device,
                    column=column,
                    problem=f"{action} is issued together with {awaited}, which it waits for",
                    hint=f"give it a cell of its own behind column {at}",
                )
            else:
                yield Violation(
                    device=device,
                    column=column,
                    problem=f"{action} stands before {awaited}, which it waits for",
                    hint=f"move it behind column {at}",
                )


def _find_deadlock(schedule: Schedule) -> DeadlockError | None:
    by_role = schedule.by_role

    def awaited_by(schedule: Schedule, action: Action) -> list[Action]:
        return [by_role[role] for role in awaited_roles(schedule, action) if role in by_role]

    try:
        for _ in walk(schedule, awaited_by):
            pass
    except DeadlockError as deadlock:
        return deadlock
    return None


def _cycle(deadlock: DeadlockError) -> Violation:
    return Violation(
        device=deadlock.device,
        column=deadlock.column,
        problem="devices wait for each other in a cycle, each for the next and the last for "
        f"the first: {' -> '.join(deadlock.links)}",
        hint="issue one of them earlier in its row",
    )


def _versions(schedule: Schedule) -> Iterator[Violation]:
    newest: Counter[tuple[int, int]] = Counter()
    by_role = schedule.by_role
    for device, column, action in cells(schedule):
        kind, stage, microbatch, slice_, version = action
        if kind is Kind.U:
            newest[device, stage] += 1
            if version != newest[device, stage]:
                yield Violation(
                    device=device,
                    column=column,
                    problem=f"{action} makes version {version} of stage {stage} where version "
                    f"{newest[device, stage]} comes next",
                    hint=f"number the updates of a stage 1, 2, 3, ...: {newest[device, stage]}",
                )
            continue
        if version > newest[device, stage] and ("U", stage, None, version) not in by_role:
            yield Violation(
                device=device,
                column=column,
                problem=f"{action} reads version {version}, which no update of stage {stage} makes",
                hint=f"read version {newest[device, stage]}, or add the update before it",
            )
        forward = by_role.get(("F", stage, microbatch, slice_))
        if (
            kind in (Kind.B, Kind.BW, Kind.W, Kind.R)
            and forward is not None
            and version != forward.version
        ):
            yield Violation(
                device=device,
                column=column,
                problem=f"{action} reads version {version}, but {forward} read version "
                f"{forward.version}",
                hint=f"read version {forward.version}: a gradient belongs to the weights of its "
                "forward",
            )


def _memory(schedule: Schedule, activation_cap: int) -> Iterator[Violation]:
    for device, peak in enumerate(peak_live(schedule, until=Kind.W)):
        if peak > activation_cap:
            yield Violation(
                device=device,
                problem=f"{peak} activations are alive at once, and the cap is {activation_cap}",
                hint="issue backwards earlier, or raise the cap",
            )
