"""Schedules as CSV text that a person can read, edit and check in.

One header line, then one row per device with its cells in order of issue:

    # jaxpipe-schedule 1 devices=2 microbatches=2 placement=loop name=1f1b
    0F0,0F1,0BW0,0BW1
    1F0,1BW0,1F1,1BW1

A cell is `<stage><kind><microbatch>[.<slice>][@<version>]`; an update has no microbatch (`0U@1`);
actions issued together stand as `(1F3;0BW2)OVERLAP`. Empty cells are skipped.

The header states what the cells cannot: the placement, which is a name (`loop`, `v`,
`bidirectional`) or the device of every stage (`0.1.1.0`; several paths as
`0.1@0|1.0@4`, each with its first microbatch). Left out, `slices` is 1, and `stages` and `backward`
are read off the cells. A file without header is read only if every stage `s` of its `P` rows
stands on row `s % P`, or the placement is given.
"""

import re
from collections.abc import Callable, Iterable
from urllib.parse import quote, unquote

from jaxpipe.schedule.action import HEADS, Action, Cell, Kind
from jaxpipe.schedule.placement import (
    PLACEMENT_NAMES,
    Placement,
    loop_placement,
    named_placement,
)
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.validate import validate
from jaxpipe.schedule.violation import ScheduleError, Violation

FORMAT_VERSION = 1
_HEADER = re.compile(r"#\s*jaxpipe-schedule\s+(?P<version>\d+)(?P<fields>(\s+\w+=\S+)*)\s*")
_ACTION = re.compile(
    r"(?P<stage>\d+)"
    r"(?:U|(?P<kind>BW|[FBWRSH])(?P<microbatch>\d+)(?:\.(?P<slice>\d+))?)"
    r"(?:@(?P<version>\d+))?"
)
_TOGETHER = re.compile(r"\((?P<actions>[^()]*;[^()]*)\)OVERLAP")
_PATH = re.compile(r"\d+(\.\d+)*(@\d+)?")
_GRAMMAR = (
    "write <stage><kind><microbatch>[.<slice>][@<version>] with kind F, B, W, BW, R, S or H, such "
    "as 2F5; an update as 2U@1; actions issued together as (2F5;1BW3)OVERLAP"
)


def to_csv(schedule: Schedule) -> str:
    """A schedule as text; `from_csv` gives back an equal one.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> print(to_csv(gpipe(1, 2)), end="")
        # jaxpipe-schedule 1 devices=1 microbatches=2 placement=loop stages=1 name=gpipe
        0F0,0F1,0BW0,0BW1
    """
    fields = {
        "devices": schedule.num_devices,
        "microbatches": schedule.num_microbatches,
        "placement": _placement_text(schedule),
        "stages": schedule.num_stages,
    }
    if schedule.num_slices > 1:
        fields["slices"] = schedule.num_slices
    if set(schedule.backward) != {Backward.FULL}:
        fields["backward"] = ",".join(schedule.backward)
    fields["name"] = quote(schedule.name, safe="")
    header = " ".join(f"{name}={value}" for name, value in fields.items())
    rows = (",".join(cell_text(cell) for cell in row) for row in schedule.rows)
    return "\n".join([f"# jaxpipe-schedule {FORMAT_VERSION} {header}", *rows]) + "\n"


def from_csv(
    text: str, *, placement: Placement | str | None = None, name: str = "csv", check: bool = True
) -> Schedule:
    r"""The schedule that a text holds.

    Args:
        text: Header and rows.
        placement: The placement, or its name, of a text without header.
        name: The name of a schedule whose header states none.
        check: Whether to validate the schedule besides reading it.

    Raises:
        ScheduleError: If cells cannot be read, or the schedule breaks a rule of `validate`; it
            lists all of them with row and column.
        ValueError: If the header cannot be read, or there is none and the placement is unclear.

    Example:
        >>> from_csv("0F0,0BW0\n1F0,1BW0\n").placement.name
        'loop'
    """
    lines = text.splitlines()
    while lines and not lines[-1].strip(", \t"):
        lines.pop()
    if not lines:
        raise ValueError("the schedule file is empty; its first line is '# jaxpipe-schedule 1 ...'")
    fields: dict[str, str] | None = None
    if lines[0].lstrip(' \t"').startswith("#"):
        fields = _read_header(lines.pop(0))
        name = unquote(fields.get("name", name))
    rows = read_rows(lines, name=name, read_cell=_read_cell, grammar=_GRAMMAR)
    schedule = assemble(rows, fields=fields, placement=placement, name=name)
    if check:
        validate(schedule)
    return schedule


def cell_text(cell: Cell) -> str:
    """A cell as it stands in a file."""
    if len(cell) == 1:
        return str(cell[0])
    return f"({';'.join(str(action) for action in cell)})OVERLAP"


def read_rows(
    lines: Iterable[str],
    *,
    name: str,
    read_cell: Callable[[str], Cell | None],
    grammar: str,
) -> tuple[tuple[Cell, ...], ...]:
    """The cells of a table, or all that cannot be read, each with row and column.

    Args:
        lines: One line per device.
        name: The name of the schedule, for the error.
        read_cell: The cell that a text means; None if it means none.
        grammar: How to write one, for the error.

    Raises:
        ScheduleError: If there are cells that mean nothing.
    """
    rows, violations = [], []
    for device, line in enumerate(lines):
        cells = []
        for column, raw in enumerate(line.split(",")):
            text = raw.strip()
            if not text:
                continue
            cell = read_cell(text)
            if cell is None:
                violations.append(
                    Violation(
                        device=device,
                        column=column,
                        problem=f"{text!r} is not a cell",
                        hint=grammar,
                    )
                )
            else:
                cells.append(cell)
        rows.append(tuple(cells))
    if violations:
        raise ScheduleError(name, violations)
    return tuple(rows)


def _read_cell(text: str) -> Cell | None:
    together = _TOGETHER.fullmatch(text)
    texts = together["actions"].split(";") if together else [text]
    actions = [read_action(part.strip()) for part in texts]
    return None if None in actions else tuple(action for action in actions if action is not None)


def read_action(text: str) -> Action | None:
    """The action that a text means; None if it means none."""
    match = _ACTION.fullmatch(text)
    if match is None:
        return None
    stage, version = int(match["stage"]), int(match["version"] or 0)
    if match["kind"] is None:
        return Action(Kind.U, stage, None, version=version)
    return Action(
        Kind(match["kind"]), stage, int(match["microbatch"]), int(match["slice"] or 0), version
    )


_KNOWN_FIELDS = (
    "devices",
    "microbatches",
    "placement",
    "stages",
    "slices",
    "backward",
    "name",
)


def _read_header(line: str) -> dict[str, str]:
    # Spreadsheets quote the line and pad it with commas to the width of the table.
    match = _HEADER.fullmatch(line.strip().rstrip(",").strip('"'))
    if match is None:
        raise ValueError(
            f"line 1 is not a header: {line!r}; write '# jaxpipe-schedule {FORMAT_VERSION} "
            "devices=P microbatches=M placement=loop', or leave the line out"
        )
    if int(match["version"]) != FORMAT_VERSION:
        raise ValueError(
            f"line 1: the file has format version {match['version']}, and this jaxpipe reads "
            f"{FORMAT_VERSION}; install the jaxpipe that wrote it"
        )
    fields = dict(field.split("=", 1) for field in match["fields"].split())
    for field, value in fields.items():
        if field not in _KNOWN_FIELDS:
            raise ValueError(
                f"line 1: there is no header field {field!r}; use {', '.join(_KNOWN_FIELDS)}"
            )
        is_size = field in ("devices", "microbatches", "stages", "slices")
        if is_size and not (value.isascii() and value.isdecimal() and int(value) > 0):
            raise ValueError(
                f"line 1: {field}={value} is not a number above 0; write {field}=4, say"
            )
    for field in ("devices", "microbatches", "placement"):
        if field not in fields:
            raise ValueError(f"line 1: the header does not state {field}; add {field}=...")
    return fields


def assemble(
    rows: tuple[tuple[Cell, ...], ...],
    *,
    fields: dict[str, str] | None,
    placement: Placement | str | None,
    name: str,
) -> Schedule:
    """A schedule from its rows, and what the header or the caller say about them.

    Args:
        rows: The cells of every device.
        fields: The fields of the header; None if there is none.
        placement: The placement, or its name; None to take the header's, or a plain loop.
        name: The name of the schedule.

    Raises:
        ValueError: If the placement is unknown or unclear.
    """
    actions = [action for row in rows for cell in row for action in cell]
    microbatches = [action.microbatch for action in actions if action.microbatch is not None]
    found = {
        "devices": len(rows),
        "microbatches": max(microbatches, default=0) + 1,
        "stages": max((a.stage for a in actions if a.kind not in HEADS), default=0) + 1,
        "slices": max((action.slice for action in actions), default=0) + 1,
    }
    if fields is not None:
        found["slices"] = 1
        found |= {size: int(fields[size]) for size in found if size in fields}
        rows += ((),) * (found["devices"] - len(rows))  # idle devices at the end
        if placement is None:
            placement = fields["placement"]
    if found["stages"] > max(len(actions), found["devices"]):
        # Each would have an F; a slip of the finger must not fill the memory with placements.
        raise ValueError(
            f"schedule {name!r} names stage {found['stages'] - 1}, but has {len(actions)} actions "
            f"in all, fewer than stages; check the numbers of the stages"
        )
    if placement is None:
        placement = _plain_loop(rows)
    elif isinstance(placement, str):
        placement = _read_placement(placement, found)
    if fields is not None and "backward" in fields:
        backward = _read_backward(fields["backward"])
    else:
        backward = _backward_of(actions, placement.num_stages)
    return Schedule(
        name=name,
        num_devices=found["devices"],
        num_microbatches=found["microbatches"],
        num_slices=found["slices"],
        placement=placement,
        backward=backward,
        rows=rows,
    )


def _plain_loop(rows: tuple[tuple[Cell, ...], ...]) -> Placement:
    num_stages = 0
    for device, row in enumerate(rows):
        for column, cell in enumerate(row):
            for action in cell:
                num_stages = max(num_stages, action.stage + 1)
                if action.stage % len(rows) != device:
                    raise ValueError(
                        f"the file has no header, and device {device}, column {column} holds "
                        f"{action}: stage {action.stage} of a loop over {len(rows)} devices lies "
                        f"on device {action.stage % len(rows)}; give the placement "
                        f"({', '.join(PLACEMENT_NAMES)}, or the device of every stage)"
                    )
    return loop_placement(len(rows), max(1, -(-num_stages // len(rows))))


def _read_placement(text: str, sizes: dict[str, int]) -> Placement:
    parts = text.split("|")
    if not all(_PATH.fullmatch(part) for part in parts):
        return named_placement(
            text,
            num_devices=sizes["devices"],
            num_stages=sizes["stages"],
            num_microbatches=sizes["microbatches"],
        )
    paths, starts = [], []
    for part in parts:
        devices, _, start = part.partition("@")
        paths.append(tuple(int(device) for device in devices.split(".")))
        starts.append(int(start or 0))
    return Placement(name="custom", paths=tuple(paths), path_starts=tuple(starts))


def _placement_text(schedule: Schedule) -> str:
    placement = schedule.placement
    sizes = {
        "num_devices": schedule.num_devices,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
    }
    if placement.name in PLACEMENT_NAMES and placement == named_placement(placement.name, **sizes):
        return placement.name
    return "|".join(
        ".".join(str(device) for device in path) + f"@{start}"
        for path, start in zip(placement.paths, placement.path_starts, strict=True)
    )


def _read_backward(text: str) -> tuple[Backward, ...]:
    try:
        return tuple(Backward(part) for part in text.split(","))
    except ValueError as unknown:
        raise ValueError(
            f"line 1: backward={text} holds an unknown word ({unknown}); use full, input or none "
            "for every stage, with commas between"
        ) from None


def _backward_of(actions: Iterable[Action], num_stages: int) -> tuple[Backward, ...]:
    """What the stages compute, read off their actions."""
    kinds: list[set[Kind]] = [set() for _ in range(num_stages)]
    for action in actions:
        if action.stage < num_stages:
            kinds[action.stage].add(action.kind)

    def backward(of_stage: set[Kind]) -> Backward:
        if of_stage & {Kind.W, Kind.BW}:
            return Backward.FULL
        return Backward.INPUT if Kind.B in of_stage else Backward.NONE

    return tuple(backward(of_stage) for of_stage in kinds)
