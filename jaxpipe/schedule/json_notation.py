"""Schedules as JSON, for programs; `jaxpipe.schedule.notation` is for people.

One object: what the schedule's fields say, with every row a list of cells and every cell a list of
actions, written as in the CSV (`"2F5"`).
"""

import json
from typing import Any

from jaxpipe.schedule.action import Cell
from jaxpipe.schedule.notation import read_action
from jaxpipe.schedule.placement import Placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes
from jaxpipe.schedule.validate import validate
from jaxpipe.schedule.violation import ScheduleError, Violation

FORMAT = "jaxpipe-schedule"
FORMAT_VERSION = 1


def to_json(schedule: Schedule) -> str:
    """A schedule as JSON; `from_json` gives back an equal one.

    Example:
        >>> import json
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> json.loads(to_json(gpipe(1, 1)))["rows"]
        [[['0F0'], ['0BW0']]]
    """
    placement = schedule.placement
    return json.dumps(
        {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "name": schedule.name,
            "num_devices": schedule.num_devices,
            "num_microbatches": schedule.num_microbatches,
            "num_slices": schedule.num_slices,
            "placement": {
                "name": placement.name,
                "paths": placement.paths,
                "path_starts": placement.path_starts,
            },
            "backward": schedule.backward,
            "rows": [[[str(action) for action in cell] for cell in row] for row in schedule.rows],
        }
    )


def from_json(text: str) -> Schedule:
    """The schedule of a JSON text.

    Raises:
        ScheduleError: If actions cannot be read, or the schedule breaks a rule of `validate`.
        ValueError: If the text is not JSON, or not of a schedule.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> from_json(to_json(gpipe(2, 2))) == gpipe(2, 2)
        True
    """
    try:
        data: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON: {error}; write it with to_json, or read a CSV with from_csv"
        ) from None
    found = (data.get("format"), data.get("version")) if isinstance(data, dict) else None
    if found != (FORMAT, FORMAT_VERSION):
        raise ValueError(
            f"the JSON is not a schedule of format {FORMAT!r} and version {FORMAT_VERSION}, but "
            f"has {found}; write it with to_json"
        )
    try:
        placement = data["placement"]
        schedule = Schedule(
            name=data["name"],
            num_devices=data["num_devices"],
            num_microbatches=data["num_microbatches"],
            num_slices=data["num_slices"],
            placement=Placement(
                name=placement["name"],
                paths=tuple(tuple(path) for path in placement["paths"]),
                path_starts=tuple(placement["path_starts"]),
            ),
            backward=tuple(Backward(part) for part in data["backward"]),
            rows=_read_rows(data["rows"], data["name"]),
        )
        check_sizes(
            num_devices=schedule.num_devices,
            num_microbatches=schedule.num_microbatches,
            num_slices=schedule.num_slices,
        )
    except KeyError as missing:
        raise ValueError(f"the JSON lacks the field {missing}; write it with to_json") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"the JSON holds a value of the wrong type: {error}; write it with to_json"
        ) from None
    validate(schedule)
    return schedule


def _read_rows(rows: list[list[list[str]]], name: str) -> tuple[tuple[Cell, ...], ...]:
    read, violations = [], []
    for device, row in enumerate(rows):
        cells = []
        for column, texts in enumerate(row):
            actions = [read_action(text) for text in texts]
            violations += [
                Violation(
                    device=device,
                    column=column,
                    problem=f"{text!r} is not an action",
                    hint="write <stage><kind><microbatch>[.<slice>][@<version>], such as 2F5",
                )
                for text, action in zip(texts, actions, strict=True)
                if action is None
            ]
            cells.append(tuple(action for action in actions if action is not None))
        read.append(tuple(cells))
    if violations:
        raise ScheduleError(name, violations)
    return tuple(read)
