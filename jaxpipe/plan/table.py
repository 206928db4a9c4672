"""Evaluations as a table for terminals."""

from collections.abc import Sequence

from jaxpipe.plan.evaluate import Evaluation

_HEADINGS = (
    "schedule",
    "makespan",
    "span",
    "bound",
    "bubble",
    "peak",
    "messages",
    "ticks",
    "lockstep",
    "form",
    "weights",
)


def to_table(evaluations: Sequence[Evaluation]) -> str:
    """One line per evaluation, in columns.

    Example:
        >>> from jaxpipe.plan.evaluate import evaluate
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> print(to_table([evaluate(gpipe(4, 8))]))
        schedule  makespan  span  bound  bubble  peak  messages  ticks  lockstep    form  weights
        gpipe           33    33     33  27.3 %     8        48     21        33  paired       1x
    """
    lines = [_HEADINGS, *(_cells(evaluation) for evaluation in evaluations)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _cells(evaluation: Evaluation) -> tuple[str, ...]:
    return (
        evaluation.label,
        f"{evaluation.makespan:.4g}",
        f"{evaluation.span:.4g}",
        f"{evaluation.lower_bound:.4g}",
        f"{100 * evaluation.bubble:.1f} %",
        f"{evaluation.peak_activations:.3g}",
        str(evaluation.num_messages),
        str(evaluation.num_ticks),
        f"{evaluation.lockstep_cost:.4g}",
        evaluation.tick_form.name.lower(),
        f"{evaluation.weight_copies}x",
    )
