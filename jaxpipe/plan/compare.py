"""Every schedule of the library at one size, side by side."""

from jaxpipe.plan.evaluate import Evaluation, evaluate
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.names import GENERATORS, make_schedule, schedule_options


def compare(
    num_devices: int, num_microbatches: int, costs: Costs | None = None, **options: int
) -> tuple[list[Evaluation], dict[str, str]]:
    """Evaluates all schedules.

    Args:
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        costs: What actions cost; by default F = B = W = R = 1.
        **options: Options such as `num_chunks`, for those schedules that take them.

    Returns:
        The evaluations, the fastest first; and for every schedule that does not allow these sizes,
        why not.

    Example:
        >>> evaluations, refused = compare(4, 6)
        >>> list(refused)
        ['dualpipe', 'dualpipe_v']
    """
    evaluations: list[Evaluation] = []
    refused: dict[str, str] = {}
    generators = set()
    for name, generator in GENERATORS.items():
        if generator in generators:
            continue  # another name of the same schedule
        generators.add(generator)
        known = schedule_options(name)
        taken = {option: value for option, value in options.items() if option in known}
        try:
            schedule = make_schedule(name, num_devices, num_microbatches, **taken)
        except ValueError as error:
            refused[name] = str(error)
            continue
        evaluations.append(evaluate(schedule, costs))
    return sorted(evaluations, key=lambda each: each.makespan), refused
