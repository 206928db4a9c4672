"""A pipeline schedule as a value: for every device, which action comes after which.

A schedule holds order, not time. Times follow from costs (`jaxpipe.schedule.simulate`), and ticks
of the compiled loop from the lowering (`jaxpipe.lower`); both read this value, and so do the
validator, the drawings and the files.
"""

import dataclasses
import enum
import functools
from collections.abc import Iterator
from typing import Any

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.placement import Placement


class Backward(enum.StrEnum):
    """Which gradients a stage needs."""

    FULL = "full"  # of its input and of its weights
    INPUT = "input"  # of its input alone: a frozen stage above a trained one
    NONE = "none"  # nothing: inference, or a frozen prefix


Role = tuple[str, int, int | None, int]
"""What an action is looked up by: kind, stage, microbatch, slice. A BW answers both to B and to W,
and an update to (U, stage, None, the version it makes)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """For every device, the actions it issues, in order.

    Attributes:
        name: As its paper names it, such as `"1f1b"`.
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        placement: Which device holds which stage.
        num_slices: Token slices of each microbatch.
        backward: The gradients each stage needs, in model order.
        rows: For every device, its cells in order of issue.
    """

    name: str
    num_devices: int
    num_microbatches: int
    placement: Placement
    num_slices: int = 1
    backward: tuple[Backward, ...]
    rows: tuple[tuple[Cell, ...], ...] = dataclasses.field(repr=False)

    @property
    def num_stages(self) -> int:
        """Stages of the model."""
        return self.placement.num_stages

    @property
    def num_chunks(self) -> int:
        """Stages per device in one direction."""
        return -(-self.num_stages // self.num_devices)

    @classmethod
    def of_actions(cls, rows: list[list[Action]], **fields: Any) -> "Schedule":
        """A schedule whose cells hold one action each."""
        return cls(rows=tuple(tuple((action,) for action in row) for row in rows), **fields)

    def actions(self, device: int) -> Iterator[Action]:
        """The actions of one device, in order of issue."""
        for cell in self.rows[device]:
            yield from cell

    @functools.cached_property
    def by_role(self) -> dict[Role, Action]:
        """Every action by its role, whether or not the schedule splits its backward."""
        found: dict[Role, Action] = {}
        for device in range(self.num_devices):
            for action in self.actions(device):
                kind, stage, microbatch, slice_, version = action
                if kind is Kind.BW:
                    found["B", stage, microbatch, slice_] = action
                    found["W", stage, microbatch, slice_] = action
                elif kind is Kind.U:
                    found["U", stage, None, version] = action
                else:
                    found[kind.value, stage, microbatch, slice_] = action
        return found

    @functools.cached_property
    def positions(self) -> dict[Action, tuple[int, int]]:
        """The device and the column of the cell of every action."""
        return {
            action: (device, column)
            for device, row in enumerate(self.rows)
            for column, cell in enumerate(row)
            for action in cell
        }

    def __str__(self) -> str:
        from jaxpipe.schedule.text import draw_text  # it needs the simulator, which needs this

        return draw_text(self)
