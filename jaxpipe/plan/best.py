"""The fastest schedule under measured costs and a memory cap: all of the library, transformed.

No schedule is best everywhere: it depends on how F, B and W compare, on hops, on what memory
allows, and on whether devices run freely or in the lockstep of the compiled loop. So every schedule
is tried with the transforms that keep its meaning (backward split, W in idle time, re-timing,
recompute), simulated and lowered at the costs in question.

What is tried is a few hundred schedules at most; nothing promises that an order outside the
library is not faster, but the makespan's lower bound stands beside each.
"""

import dataclasses
from collections.abc import Iterator

from jaxpipe.plan.evaluate import Evaluation, evaluate, peak_activations
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.fill_weights import fill_weights
from jaxpipe.schedule.names import make_schedule
from jaxpipe.schedule.recompute import insert_recompute
from jaxpipe.schedule.retime import retime
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.sizes import check_sizes
from jaxpipe.schedule.split_backward import split_backward

_ONE_CHUNK = ("gpipe", "1f1b", "eager_1f1b", "zb_h1", "zb_h2", "zb2p", "zb1p5")
_CHUNKED = ("interleaved_1f1b", "looped_bfs", "group_interleaved", "interleaved_zb")
_TWO_CHUNKS = ("zbv", "v_half", "v_min", "1f1b_v", "dualpipe_v")
_MIRRORED = ("chimera", "dualpipe", "bitpipe")
_SLICED = ("seq1f1b", "terapipe")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """The outcome of a search. Made by `best`.

    Attributes:
        lockstep: The fastest in the compiled loop.
        free_running: The fastest on free-running devices.
        considered: All that were evaluated and fit, the fastest of the lockstep loop first.
        num_refused: How many exceeded the cap.
    """

    lockstep: Evaluation
    free_running: Evaluation
    considered: tuple[Evaluation, ...]
    num_refused: int


def best(
    num_devices: int,
    num_microbatches: int,
    costs: Costs | None = None,
    *,
    activation_cap: float | None = None,
    max_chunks: int = 2,
    num_slices: int = 1,
    mirrored_weights: bool = False,
    recomputed_share: float | None = None,
) -> Best:
    """Searches schedules and transforms.

    Args:
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        costs: Measured costs of F, B, W, R and a hop; by default F = B = W = R = 1 and free hops.
        activation_cap: The most a device may keep, in activations of one microbatch in its whole
            share of the model; by default anything.
        max_chunks: The most chunks per device that the model can be cut into.
        num_slices: The token slices that a causal model may be cut into; 1 for none.
        mirrored_weights: Whether the weights may lie on two devices each.
        recomputed_share: If stages may recompute, what one that does keeps, as a share of its whole
            activation; None if they may not.

    Raises:
        ValueError: If a limit makes no sense, or nothing fits under the cap; the error then says
            what the most frugal schedule needs.

    Example:
        >>> found = best(2, 4, max_chunks=1, activation_cap=2.0)
        >>> found.lockstep.label, found.lockstep.lockstep_cost, found.free_running.makespan
        ('1f1b + fill', 13.0, 13.0)
    """
    costs = Costs() if costs is None else costs
    share = 1.0 if recomputed_share is None else recomputed_share
    check_sizes(max_chunks=max_chunks, num_slices=num_slices)
    if not 0 <= share <= 1:
        raise ValueError(
            f"recomputed_share={share} is no share of an activation; use a number from 0 to 1"
        )
    if activation_cap is not None and not activation_cap >= 0:
        raise ValueError(
            f"activation_cap={activation_cap} is no number of activations; use 1 or more, or None"
        )
    evaluations: list[Evaluation] = []
    seen: set[tuple[object, ...]] = set()
    least = float("inf")
    num_refused = 0
    bases = _bases(num_devices, num_microbatches, max_chunks, num_slices, mirrored_weights)
    for base_label, base in bases:
        for label, schedule in _variants(base_label, base, costs, recomputed_share is not None):
            if schedule.rows in seen:
                continue
            seen.add(schedule.rows)
            peak = peak_activations(schedule, recomputed_share=share)
            least = min(least, peak)
            if activation_cap is not None and peak > activation_cap:
                num_refused += 1
                continue
            evaluations.append(evaluate(schedule, costs, label=label, recomputed_share=share))
    if not evaluations:
        raise ValueError(
            f"no schedule for num_devices={num_devices}, num_microbatches={num_microbatches} keeps "
            f"at most activation_cap={activation_cap:g} activations; the most frugal keeps "
            f"{least:g}: raise the cap to that, or allow recompute or smaller microbatches"
        )
    by_lockstep = sorted(evaluations, key=_lockstep_order)
    return Best(
        lockstep=by_lockstep[0],
        free_running=min(evaluations, key=_free_running_order),
        considered=tuple(by_lockstep),
        num_refused=num_refused,
    )


def _lockstep_order(each: Evaluation) -> tuple[float | int, ...]:
    return each.lockstep_cost, each.peak_activations, each.num_messages, each.num_ticks, each.span


def _free_running_order(each: Evaluation) -> tuple[float | int, ...]:
    return each.makespan, each.peak_activations, each.num_messages, each.span


def _bases(
    num_devices: int,
    num_microbatches: int,
    max_chunks: int,
    num_slices: int,
    mirrored_weights: bool,
) -> Iterator[tuple[str, Schedule]]:
    """Every schedule of the library with the options that the model allows."""
    wanted: list[tuple[str, dict[str, int]]] = [(name, {}) for name in _ONE_CHUNK]
    for num_chunks in range(2, max_chunks + 1):
        wanted += [(name, {"num_chunks": num_chunks}) for name in _CHUNKED]
        wanted.append(("group_interleaved", {"num_chunks": num_chunks, "group_size": num_devices}))
        if num_chunks % 2 == 0:
            wanted.append(("hanayo", {"num_waves": num_chunks // 2}))
    if max_chunks >= 2:
        wanted += [(name, {}) for name in _TWO_CHUNKS]
    if num_slices > 1:
        wanted += [(name, {"num_slices": num_slices}) for name in _SLICED]
    if mirrored_weights:
        wanted += [(name, {}) for name in _MIRRORED if name != "bitpipe" or max_chunks >= 2]
    for name, options in wanted:
        try:
            schedule = make_schedule(name, num_devices, num_microbatches, **options)
        except ValueError:
            continue  # the mathematics does not allow these sizes
        shown = ", ".join(f"{option}={value}" for option, value in options.items())
        yield f"{name}({shown})" if shown else name, schedule


def _variants(
    label: str, base: Schedule, costs: Costs, may_recompute: bool
) -> Iterator[tuple[str, Schedule]]:
    """A schedule and what the transforms make of it."""
    yield label, base
    split = split_backward(base)
    yield f"{label} + split", split
    yield f"{label} + fill", fill_weights(base, costs=costs)
    yield f"{label} + retime", retime(base, costs)
    yield f"{label} + split + retime", retime(split, costs)
    if may_recompute:
        yield f"{label} + recompute", insert_recompute(base)
        yield f"{label} + recompute + fill", fill_weights(insert_recompute(base), costs=costs)
