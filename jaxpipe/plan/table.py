"""Evaluations and slices as tables for terminals."""

from collections.abc import Sequence

from jaxpipe.plan.evaluate import Evaluation
from jaxpipe.plan.slices import SlicePlan

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
    return _columns([_HEADINGS, *(_cells(evaluation) for evaluation in evaluations)])


def slices_table(plan: SlicePlan, others: Sequence[SlicePlan]) -> str:
    """A way to cut a sequence beside others, one line each.

    Example:
        >>> plan = SlicePlan(lengths=(5, 3), costs=(5.0, 4.0), time=14.0)
        >>> print(slices_table(plan, [SlicePlan(lengths=(8,), costs=(9.0,), time=18.0)]))
        slices      tokens  sum  longest  time  of best
        2, planned  3 to 5    9        5    14        1
        1, equal         8    9        9    18     1.29
    """
    rows = [("slices", "tokens", "sum", "longest", "time", "of best")]
    for each, kind in [(plan, "planned"), *((other, "equal") for other in others)]:
        shortest, longest = min(each.lengths), max(each.lengths)
        rows.append(
            (
                f"{len(each.lengths)}, {kind}",
                str(longest) if shortest == longest else f"{shortest} to {longest}",
                f"{sum(each.costs):.5g}",
                f"{max(each.costs):.5g}",
                f"{each.time:.5g}",
                f"{each.time / plan.time:.3g}" if plan.time else "-",
            )
        )
    return _columns(rows)


def _columns(lines: Sequence[tuple[str, ...]]) -> str:
    """Lines of cells under each other: the first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
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
