"""Freeze stages: drop the gradients that nobody needs.

A frozen stage above a trained one still has to pass the gradient of its input on: of its backward
B remains, and W goes. Below the first trained stage nothing goes back at all.

He, Li, Soltanolkotabi, Avestimehr: PipeTransformer (2021), arXiv 2102.03161, freezes a growing
prefix.
"""

import dataclasses
from collections.abc import Sequence

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.schedule import Backward, Schedule


def freeze(schedule: Schedule, backward: Sequence[Backward | str]) -> Schedule:
    """The schedule with only the backwards that its stages need.

    Args:
        schedule: A schedule.
        backward: For every stage, `"full"`, `"input"` (its weights are frozen) or `"none"` (so are
            all before it).

    Raises:
        ValueError: If the stages do not match, a stage has a backward below one that has none, or
            a stage would need a gradient that the schedule does not compute.

    Example:
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> [str(action) for action in freeze(gpipe(2, 1), ["none", "full"]).actions(0)]
        ['0F0']
        >>> [str(action) for action in freeze(gpipe(2, 1), ["full", "input"]).actions(1)]
        ['1F0', '1B0']
    """
    wanted = tuple(Backward(each) for each in backward)
    if len(wanted) != schedule.num_stages:
        raise ValueError(
            f"backward must name what each of the {schedule.num_stages} stages needs; found "
            f"{len(wanted)}: {', '.join(wanted)}"
        )
    first = next((stage for stage, each in enumerate(wanted) if each is not Backward.NONE), None)
    if first is not None and Backward.NONE in wanted[first:]:
        raise ValueError(
            "gradients reach a stage through all stages after it, so only a prefix of the stages "
            f"can go without; found {', '.join(wanted)}: use 'input' for a frozen stage above "
            f"stage {first}"
        )
    for stage, (new, old) in enumerate(zip(wanted, schedule.backward, strict=True)):
        if old is not Backward.FULL and new is not old and new is not Backward.NONE:
            raise ValueError(
                f"stage {stage} of schedule {schedule.name!r} has the backward {old!s}, from which "
                f"{new!s} can't be made; start from the schedule that trains every stage"
            )
    rows = tuple(
        tuple(
            kept
            for cell in row
            if (kept := tuple(new for each in cell if (new := _needed(each, wanted[each.stage]))))
        )
        for row in schedule.rows
    )
    return dataclasses.replace(schedule, rows=rows, backward=wanted)


def _needed(action: Action, backward: Backward) -> Action | None:
    """What remains of an action."""
    if action.kind is Kind.F or backward is Backward.FULL:
        return action
    if backward is Backward.NONE or action.kind is Kind.W:
        return None
    return action._replace(kind=Kind.B) if action.kind is Kind.BW else action
