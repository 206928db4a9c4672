"""The `compute_only` CSV of torch.distributed.pipelining, both ways.

torch names what jaxpipe calls B an `I` (input gradient) and what jaxpipe calls BW a `B`:

    torch     0F0,0F1,0B0,0B1      0I0,0W0     (0F1;1B0)OVERLAP_F_B
    jaxpipe   0F0,0F1,0BW0,0BW1    0B0,0W0     (0F1;1BW0)OVERLAP

Its files state no placement: torch takes that from its schedule class. Its actions know neither
token slices nor recompute, updates or heads.
"""

import re

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.notation import assemble, read_rows
from jaxpipe.schedule.placement import Placement
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.validate import validate

_TO_TORCH = {Kind.F: "F", Kind.B: "I", Kind.W: "W", Kind.BW: "B"}
_FROM_TORCH = {letter: kind for kind, letter in _TO_TORCH.items()}
_ACTION = re.compile(r"(\d+)([FIWB])(\d+)")
_TOGETHER = re.compile(r"\(([^()]*;[^()]*)\)OVERLAP_F_B")
_GRAMMAR = (
    "torch writes <stage><kind><microbatch> with kind F, I, W or B, such as 2F5; actions issued "
    "together as (2F5;1B3)OVERLAP_F_B"
)


def to_torch_csv(schedule: Schedule) -> str:
    """A schedule as torch reads it.

    Raises:
        ValueError: If the schedule has slices, versions, or actions that torch does not know.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> print(to_torch_csv(gpipe(1, 2)), end="")
        0F0,0F1,0B0,0B1
    """
    if len(schedule.placement.paths) > 1:
        raise ValueError(
            f"torch keeps every stage on one device, but schedule {schedule.name!r} has stages on "
            "several; choose one whose microbatches all take one path"
        )

    def text(action: Action) -> str:
        if action.kind not in _TO_TORCH or action.slice or action.version:
            raise ValueError(
                f"torch has no action {action} of schedule {schedule.name!r}: it knows F, B, W "
                "and BW of whole microbatches; choose a schedule without slices, recompute, "
                "updates and heads"
            )
        return f"{action.stage}{_TO_TORCH[action.kind]}{action.microbatch}"

    def cell_text(cell: Cell) -> str:
        if len(cell) == 1:
            return text(cell[0])
        return f"({';'.join(text(action) for action in cell)})OVERLAP_F_B"

    return "".join(",".join(cell_text(cell) for cell in row) + "\n" for row in schedule.rows)


def from_torch_csv(
    text: str, *, placement: Placement | str | None = None, name: str = "torch"
) -> Schedule:
    """The schedule of a torch file.

    Args:
        text: Rows of cells; empty cells are idle and skipped.
        placement: The placement or its name; by default a plain loop, which is checked.
        name: The name of the schedule.

    Raises:
        ScheduleError: If cells cannot be read, or the schedule breaks a rule of `validate`.
        ValueError: If no placement is given and the stages do not lie as in a loop.

    Example:
        >>> str(from_torch_csv("0F0,0I0,0W0").rows[0][1][0])
        '0B0'
    """
    rows = read_rows(text.strip().splitlines(), name=name, read_cell=_read_cell, grammar=_GRAMMAR)
    schedule = assemble(rows, fields=None, placement=placement, name=name)
    validate(schedule)
    return schedule


def _read_cell(text: str) -> Cell | None:
    together = _TOGETHER.fullmatch(text)
    texts = together[1].split(";") if together else [text]
    matches = [_ACTION.fullmatch(part.strip()) for part in texts]
    actions = tuple(
        Action(_FROM_TORCH[match[2]], int(match[1]), int(match[3]))
        for match in matches
        if match is not None
    )
    return actions if len(actions) == len(texts) else None
