"""The `jaxpipe` command: draw, simulate, compare, find and check schedules; cut models, tokens.

    jaxpipe schedule 1f1b --devices 4 --microbatches 8
    jaxpipe simulate zb_h1 --devices 8 --microbatches 24 --forward 18.5 --backward-input 18.1
    jaxpipe compare --devices 4 --microbatches 8
    jaxpipe best --devices 4 --microbatches 8 --cap 4
    jaxpipe validate my_schedule.csv
    jaxpipe partition 3,1,4,1,5,9,2,6 --stages 3
    jaxpipe slice --length 2048 --stages 48 --cost "60 + l * (1 + ctx / 8000)" --grid 8

It works on names, numbers and files alone: no device is touched and nothing is compiled.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jaxpipe.draw import to_png, to_svg, to_trace
from jaxpipe.plan import (
    Evaluation,
    SliceProblem,
    best,
    compare,
    equal_splits,
    parse_cost,
    partition,
    plan_slices,
    read_cost_table,
    slices_table,
    to_table,
)
from jaxpipe.schedule import (
    Costs,
    Schedule,
    ScheduleError,
    Simulation,
    draw_text,
    fill_weights,
    find_violations,
    from_csv,
    from_json,
    make_schedule,
    schedule_names,
    share_head,
    simulate,
    to_csv,
    to_json,
    to_torch_csv,
)
from jaxpipe.schedule.names import schedule_options

# Option of the command -> option of the generators.
_OPTIONS = {
    "chunks": "num_chunks",
    "slices": "num_slices",
    "group": "group_size",
    "waves": "num_waves",
    "update_every": "update_every",
}
_COSTS = (
    "forward",
    "backward_input",
    "backward_weight",
    "recompute",
    "head",
    "head_statistics",
    "hop",
    "overlap",
)
_FORMATS = ("text", "csv", "torch-csv", "json", "svg", "png", "trace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The words behind `jaxpipe`; by default those of the command line.

    Returns:
        The exit status: 0 if all is well, 1 if a schedule breaks rules, 2 if what is asked for
        cannot be done.
    """
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain when it flushes at exit.
        sys.stdout = None
        return 0
    except (ValueError, ImportError, OSError) as error:
        print(f"jaxpipe {parsed.command}: {error}", file=sys.stderr)
        return 1 if isinstance(error, ScheduleError) else 2


def _schedule(arguments: argparse.Namespace) -> int:
    costs = _costs(arguments)
    schedule = _named(arguments.name, arguments)
    if arguments.cap is not None:
        schedule = fill_weights(schedule, activation_cap=arguments.cap, costs=costs)
    if arguments.head_barriers is not None:
        schedule = share_head(schedule, num_barriers=arguments.head_barriers, costs=costs)
    match arguments.format:
        case "text":
            content = draw_text(schedule, costs, width=arguments.width) + "\n"
        case "csv":
            content = to_csv(schedule)
        case "torch-csv":
            content = to_torch_csv(schedule)
        case "json":
            content = to_json(schedule) + "\n"
        case "svg":
            content = to_svg(simulate(schedule, costs))
        case "png":
            if arguments.out is None:
                raise ValueError("a PNG is no text for a terminal; add --out FILE.png")
            content = to_png(simulate(schedule, costs))
        case _:
            content = to_trace(simulate(schedule, costs)) + "\n"
    if arguments.out is None:
        sys.stdout.write(str(content))
    elif isinstance(content, bytes):
        pathlib.Path(arguments.out).write_bytes(content)
    else:
        pathlib.Path(arguments.out).write_text(content, encoding="utf-8")
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    if arguments.name not in schedule_names() and pathlib.Path(arguments.name).exists():
        for word in ("devices", "microbatches", *_OPTIONS):
            if getattr(arguments, word) is not None:
                raise ValueError(
                    f"the file {arguments.name} states its sizes itself; leave out "
                    f"--{_dashed(word)}, or name a schedule"
                )
        schedule = _read(arguments.name, arguments.placement)
    else:
        if arguments.placement is not None:
            raise ValueError("--placement is for files; a named schedule has one of its own")
        schedule = _named(arguments.name, arguments)
    numbers = _numbers(simulate(schedule, _costs(arguments)))
    if arguments.json:
        print(json.dumps(numbers))
    else:
        width = max(map(len, numbers))
        for name, value in numbers.items():
            print(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    options = {
        option: getattr(arguments, word)
        for word, option in _OPTIONS.items()
        if getattr(arguments, word) is not None
    }
    evaluations, refused = compare(
        arguments.devices, arguments.microbatches, _costs(arguments), **options
    )
    if arguments.json:
        print(json.dumps([_row(evaluation) for evaluation in evaluations]))
        return 0
    print(to_table(evaluations))
    for name, reason in refused.items():
        print(f"left out {name}: {reason}")
    return 0


def _best(arguments: argparse.Namespace) -> int:
    found = best(
        arguments.devices,
        arguments.microbatches,
        _costs(arguments),
        activation_cap=arguments.cap,
        max_chunks=arguments.chunks,
        num_slices=arguments.slices,
        mirrored_weights=arguments.mirrored_weights,
        recomputed_share=arguments.recomputed_share,
    )
    if arguments.json:
        print(json.dumps([_row(evaluation) for evaluation in found.considered]))
        return 0
    print(to_table(found.considered[: arguments.top]))
    print(f"fastest in the lockstep loop      {found.lockstep.label}")
    print(f"fastest on free-running devices   {found.free_running.label}")
    print(f"considered {len(found.considered)}, and {found.num_refused} above the cap")
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    try:
        schedule = _read(arguments.file, arguments.placement, check=False)
        violations = find_violations(schedule, activation_cap=arguments.cap)
    except ScheduleError as unreadable:
        violations = list(unreadable.violations)
        schedule = None
    if violations or schedule is None:
        for violation in violations:
            print(f"{arguments.file}: {violation}")
        count = "1 violation" if len(violations) == 1 else f"{len(violations)} violations"
        print(f"{arguments.file}: {count} (devices and columns counted from 0)")
        return 1
    print(
        f"{arguments.file}: valid: {schedule.num_devices} devices, {schedule.num_stages} stages, "
        f"{schedule.num_microbatches} microbatches"
    )
    return 0


def _partition(arguments: argparse.Namespace) -> int:
    weights = _weights(arguments.weights)
    speeds = None if arguments.speeds is None else _weights(arguments.speeds)
    found = partition(weights, arguments.stages, speeds=speeds)
    if arguments.json:
        loads = list(found.loads)
        print(json.dumps({"bounds": list(found.bounds), "max": found.heaviest, "loads": loads}))
        return 0
    mean = sum(found.loads) / len(found.loads)
    above = f", {found.heaviest / mean - 1:.1%} above the mean {mean:.6g}" if mean else ""
    print(f"heaviest stage {found.heaviest:.6g}{above}")
    for stage, (load, count) in enumerate(zip(found.loads, found.layers_per_stage, strict=True)):
        first = found.bounds[stage]
        layers = f"layer {first}" if count == 1 else f"layers {first} to {first + count - 1}"
        print(f"stage {stage:<4}{load:>12.6g}  {layers}")
    return 0


def _weights(text: str) -> list[float]:
    """Numbers that are typed, or stand in a file: with commas between, or one a line."""
    if pathlib.Path(text).is_file():
        text = pathlib.Path(text).read_text(encoding="utf-8")
    words = text.replace(",", " ").split()
    try:
        return [float(word) for word in words]
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is neither a file nor numbers with commas between, such as 3,1,4"
        ) from None


def _slice(arguments: argparse.Namespace) -> int:
    if arguments.cost_table is None:
        cost = parse_cost(arguments.cost)
    else:
        try:
            cost = read_cost_table(pathlib.Path(arguments.cost_table).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{arguments.cost_table}: {error}") from None
    problem = SliceProblem(
        cost=cost,
        length=arguments.length,
        stages=arguments.stages,
        microbatches=arguments.microbatches,
        hop=arguments.hop,
        grid=arguments.grid,
    )
    plan = plan_slices(problem, num_slices=arguments.num_slices, max_lengths=arguments.max_lengths)
    powers = [2**power for power in range(problem.length.bit_length())]
    equal = equal_splits(problem, sorted({*powers, len(plan.lengths)}))
    if arguments.json:
        splits = [{"num_slices": len(each.lengths), "time": each.time} for each in equal]
        found = {"lengths": list(plan.lengths), "time": plan.time, "costs": list(plan.costs)}
        print(json.dumps({**found, "equal": splits}))
        return 0
    print(f"lengths  {' '.join(map(str, plan.lengths))}")
    print(f"time     {plan.time:.6g}")
    print()
    print(slices_table(plan, equal))
    return 0


def _named(name: str, arguments: argparse.Namespace) -> Schedule:
    """The schedule of a name, with the options of the command line."""
    if name not in schedule_names() and pathlib.Path(name).suffix:
        raise ValueError(f"there is no file {name!r}; check the path")
    if name not in schedule_names():
        make_schedule(name, 1, 1)  # raises, with the nearest name
    for word in ("devices", "microbatches"):
        if getattr(arguments, word) is None:
            raise ValueError(f"a schedule needs --{word}; add --{word} 4, say")
    known = schedule_options(name)
    options = {}
    for word, option in _OPTIONS.items():
        if getattr(arguments, word) is None:
            continue
        if option not in known:
            takes = [f"--{_dashed(each)}" for each, of in _OPTIONS.items() if of in known]
            raise ValueError(
                f"{name} takes no --{_dashed(word)}; it takes {', '.join(takes) or 'no options'}"
            )
        options[option] = getattr(arguments, word)
    return make_schedule(name, arguments.devices, arguments.microbatches, **options)


def _read(path: str, placement: str | None, *, check: bool = True) -> Schedule:
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text; give a .csv or .json file of a schedule") from None
    if path.endswith(".json"):
        return from_json(text)
    return from_csv(text, placement=placement, name=pathlib.Path(path).stem, check=check)


def _costs(arguments: argparse.Namespace) -> Costs:
    return Costs(**{name: getattr(arguments, name) for name in _COSTS})


def _numbers(simulation: Simulation) -> dict[str, Any]:
    schedule = simulation.schedule
    return {
        "schedule": schedule.name,
        "devices": schedule.num_devices,
        "stages": schedule.num_stages,
        "microbatches": schedule.num_microbatches,
        "makespan": simulation.makespan,
        "span": simulation.span,
        "lower_bound": simulation.lower_bound,
        "bubble": simulation.bubble,
        "span_bubble": simulation.span_bubble,
        "idle": list(simulation.idle),
        "inner_idle": list(simulation.inner_idle),
        "peak_live_to_input_gradient": list(simulation.peak_live_to_input_gradient),
        "peak_live_to_weight_gradient": list(simulation.peak_live_to_weight_gradient),
        "messages_forward": list(simulation.messages.forward),
        "messages_backward": list(simulation.messages.backward),
    }


def _row(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "schedule": evaluation.label,
        "makespan": evaluation.makespan,
        "span": evaluation.span,
        "lower_bound": evaluation.lower_bound,
        "bubble": evaluation.bubble,
        "peak_activations": evaluation.peak_activations,
        "messages": evaluation.num_messages,
        "lockstep_ticks": evaluation.num_ticks,
        "lockstep_cost": evaluation.lockstep_cost,
        "tick_form": evaluation.tick_form.name.lower(),
        "weight_copies": evaluation.weight_copies,
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_shown(each) for each in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _dashed(word: str) -> str:
    return word.replace("_", "-")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxpipe",
        description="Draw, simulate, compare, search and check pipeline schedules; cut models and "
        "tokens.",
        epilog="Example: jaxpipe schedule 1f1b --devices 4 --microbatches 8",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Any, purpose: str, example: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=purpose, description=f"{purpose}.", epilog=f"Example: jaxpipe {example}"
        )
        command.set_defaults(run=run)
        return command

    names = f"a schedule: {', '.join(schedule_names())}"

    command = add(
        "schedule",
        _schedule,
        "Draw a schedule or write it to a file",
        "schedule zb_h1 --devices 4 --microbatches 8 --format svg --out zb.svg",
    )
    command.add_argument("name", metavar="NAME", help=names)
    _add_sizes(command, required=True)
    _add_options(command)
    command.add_argument(
        "--cap",
        type=int,
        help="split the backward and move W into idle time, keeping at most so many activations",
    )
    command.add_argument(
        "--head-barriers",
        type=int,
        choices=(1, 2),
        help="share the head out over all devices, in one pass or two",
    )
    command.add_argument("--format", choices=_FORMATS, default="text", help="default: text")
    command.add_argument("--out", metavar="FILE", help="default: standard output")
    command.add_argument("--width", type=int, default=100, help="of the text; default: 100")
    _add_costs(command)

    command = add(
        "simulate",
        _simulate,
        "Print times, idle times, peaks and messages of a schedule",
        "simulate 1f1b --devices 4 --microbatches 8 --backward-input 1.3 --hop 0.1",
    )
    command.add_argument("name", metavar="NAME|FILE", help=f"{names}; or a .csv or .json file")
    _add_sizes(command, required=False)
    _add_options(command)
    _add_placement(command)
    _add_costs(command)
    _add_json(command)

    command = add(
        "compare",
        _compare,
        "Print a table of all schedules at one size",
        "compare --devices 4 --microbatches 8 --chunks 2",
    )
    _add_sizes(command, required=True)
    _add_options(command)
    _add_costs(command)
    _add_json(command)

    command = add(
        "best",
        _best,
        "Search schedules and transforms for the fastest",
        "best --devices 4 --microbatches 8 --cap 4 --backward-input 1.3 --backward-weight 0.7",
    )
    _add_sizes(command, required=True)
    command.add_argument(
        "--cap",
        type=float,
        help="the most a device keeps, in activations of one microbatch in its whole share",
    )
    command.add_argument("--chunks", type=int, default=2, help="at most per device; default: 2")
    command.add_argument("--slices", type=int, default=1, help="of a causal model; default: 1")
    command.add_argument(
        "--mirrored-weights", action="store_true", help="weights may lie on two devices each"
    )
    command.add_argument(
        "--recomputed-share",
        type=float,
        help="stages may recompute, and then keep this share of their activation",
    )
    command.add_argument("--top", type=int, default=10, help="lines of the table; default: 10")
    _add_costs(command)
    _add_json(command)

    command = add(
        "validate",
        _validate,
        "List every rule that a schedule file breaks",
        "validate my_schedule.csv --placement v",
    )
    command.add_argument("file", metavar="FILE", help="a .csv or .json file")
    _add_placement(command)
    command.add_argument("--cap", type=int, help="the most activations a device may keep")

    command = add(
        "partition",
        _partition,
        "Put layers into stages, the heaviest of which is as light as can be",
        "partition 3,1,4,1,5,9,2,6 --stages 3",
    )
    command.add_argument(
        "weights", metavar="WEIGHTS|FILE", help="what each layer weighs: numbers, or a file of them"
    )
    command.add_argument("--stages", type=int, required=True, metavar="S")
    command.add_argument("--speeds", metavar="NUMBERS", help="of the device of each stage")
    _add_json(command)

    command = add(
        "slice",
        _slice,
        "Cut sequences into the token slices that a pipeline runs fastest",
        'slice --length 2048 --stages 48 --cost "60 + l * (1 + ctx / 8000)" --grid 8',
    )
    command.add_argument("--length", type=int, required=True, help="tokens of a sequence")
    command.add_argument("--stages", type=int, required=True, metavar="P")
    costs = command.add_mutually_exclusive_group(required=True)
    costs.add_argument(
        "--cost",
        metavar="EXPRESSION",
        help="what one stage takes for l tokens behind ctx others: arithmetic of l and ctx",
    )
    costs.add_argument("--cost-table", metavar="FILE", help="the same, measured: CSV l,ctx,time")
    command.add_argument(
        "--microbatches", type=int, default=1, metavar="M", help="all cut alike; default: 1"
    )
    command.add_argument("--hop", type=float, default=0.0, metavar="T", help="default: 0")
    command.add_argument("--grid", type=int, default=1, help="lengths are multiples; default: 1")
    command.add_argument("--num-slices", type=int, metavar="K", help="default: as many as best")
    command.add_argument("--max-lengths", type=int, metavar="N", help="different ones at most")
    _add_json(command)
    return parser


def _add_sizes(command: argparse.ArgumentParser, *, required: bool) -> None:
    command.add_argument("--devices", type=int, required=required, metavar="P")
    command.add_argument("--microbatches", type=int, required=required, metavar="M")


def _add_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("options of some schedules")
    group.add_argument("--chunks", type=int, metavar="v", help="stages per device")
    group.add_argument("--slices", type=int, metavar="k", help="token slices per microbatch")
    group.add_argument("--group", type=int, metavar="N", help="microbatches per group")
    group.add_argument("--waves", type=int, metavar="w", help="waves of hanayo")
    group.add_argument("--update-every", type=int, metavar="m", help="of pipedream_2bw")


def _add_costs(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "costs", "of one microbatch on a device's whole share of the model, in any unit of time"
    )
    defaults = Costs()
    for name in _COSTS:
        default = getattr(defaults, name)
        group.add_argument(
            f"--{_dashed(name)}",
            type=float,
            default=default,
            metavar="T",
            help=f"default: {default:g}",
        )


def _add_placement(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--placement", help="of a file without header: loop, v, bidirectional, or as 0.1.1.0"
    )


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


if __name__ == "__main__":
    sys.exit(main())
