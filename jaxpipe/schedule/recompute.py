"""Insert recompute: keep only the input of some stages, and run their forward again before B.

Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost (2016), arXiv 1604.06174.

As an action of its own, R fills idle ticks and aligns with other devices' ticks, which it cannot
inside a backward. Each R stands right before its B, where its activation lives shortest.
"""

import dataclasses
from collections.abc import Iterable

from jaxpipe.schedule.action import Cell, Kind
from jaxpipe.schedule.schedule import Schedule


def insert_recompute(
    schedule: Schedule,
    stages: Iterable[int] | None = None,
    microbatches: Iterable[int] | None = None,
) -> Schedule:
    """Puts an R right before the backward of the given stages and microbatches.

    Args:
        schedule: A schedule without R in these stages.
        stages: The stages that recompute; by default all.
        microbatches: The microbatches that are recomputed; by default all.

    Raises:
        ValueError: If there is no such stage or microbatch, or the stage recomputes already.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> [str(action) for action in insert_recompute(gpipe(1, 2)).actions(0)]
        ['0F0', '0F1', '0R0', '0BW0', '0R1', '0BW1']
    """
    wanted = _members("stage", stages, schedule.num_stages, schedule.name)
    again = _members("microbatch", microbatches, schedule.num_microbatches, schedule.name)
    rows = []
    for row in schedule.rows:
        cells: list[Cell] = []
        for cell in row:
            for action in cell:
                if action.stage not in wanted:
                    continue
                if action.kind is Kind.R:
                    raise ValueError(
                        f"stage {action.stage} of schedule {schedule.name!r} recomputes already "
                        f"({action}); leave it out of stages"
                    )
                if action.kind in (Kind.B, Kind.BW) and action.microbatch in again:
                    cells.append((action._replace(kind=Kind.R),))
            cells.append(cell)
        rows.append(tuple(cells))
    return dataclasses.replace(schedule, rows=tuple(rows))


def _members(what: str, wanted: Iterable[int] | None, count: int, name: str) -> set[int]:
    """The wanted numbers below `count`; by default all."""
    members = set(range(count) if wanted is None else wanted)
    for member in sorted(members):
        if not 0 <= member < count:
            raise ValueError(
                f"there is no {what} {member} to recompute in schedule {name!r}; use numbers from "
                f"0 to {count - 1}"
            )
    return members
