"""The unit of work of a pipeline: what one device does to one microbatch in one stage."""

import enum
from typing import NamedTuple


class Kind(enum.StrEnum):
    """What an action does.

    `B` is the gradient of a stage's input alone and `W` that of its weights alone; `BW` does both.
    (Papers often write B for both: jaxpipe never does.)
    """

    F = "F"  # forward
    B = "B"  # gradient of the stage's input
    W = "W"  # gradient of the stage's weights
    BW = "BW"  # both gradients at once
    R = "R"  # recompute what F did not keep
    U = "U"  # update the stage's weights (asynchronous schedules only)
    S = "S"  # first pass of a head in two: its logits and their statistics (as H)
    H = "H"  # head and loss of one microbatch (vocabulary-parallel schedules only)


HEADS = frozenset({Kind.S, Kind.H})
"""The kinds that belong to a part of the vocabulary, not to a stage."""


class Action(NamedTuple):
    """One action, as `<stage><kind><microbatch>[.<slice>][@<version>]`.

    Attributes:
        kind: What is done.
        stage: Which stage, counted in model order from 0; of S and H, which part of the vocabulary,
            and part `d` lies on device `d`.
        microbatch: Which microbatch, from 0; None for an update, which belongs to no microbatch.
        slice: Which token slice of the microbatch, from 0; schedules without slices use 0.
        version: Which version of the weights the action reads, and which one an update makes
            (asynchronous schedules only; version 0 is the initial weights).

    Example:
        >>> str(Action(Kind.BW, stage=2, microbatch=5))
        '2BW5'
    """

    kind: Kind
    stage: int
    microbatch: int | None
    slice: int = 0
    version: int = 0

    def __str__(self) -> str:
        microbatch = "" if self.microbatch is None else self.microbatch
        piece = f".{self.slice}" if self.slice else ""
        version = f"@{self.version}" if self.version else ""
        return f"{self.stage}{self.kind}{microbatch}{piece}{version}"


Cell = tuple[Action, ...]
"""What a device issues at once: one action, or several whose work may overlap (as in DualPipe)."""
