"""Share the head out: every device does a part of the vocabulary for every microbatch.

Yeung, Qi, Lin, Wan: Balancing Pipeline Parallelism with Vocabulary Parallelism (2024), arXiv
2411.05288.

A head on the last stage makes that stage the slowest, and the others wait for it. Shared out, its
cost is the same on all devices, but the last stage's backward has to wait for all of them: a
barrier. A head in one pass (H) has one barrier; a head that first exchanges the statistics of its
softmax (S, then H) has two. So that nobody idles at a barrier, all devices run one microbatch
further ahead for each. Two devices, one barrier (F = H = 1, BW = 2):

    device 0  F0 F1 F2 H0 H1 ...BW0-- F3 H2 BW1-- H3 ...BW2-- ...BW3--
    device 1  ...F0 F1 H0 BW0-- F2 H1 BW1-- F3 H2 BW2-- H3 BW3-- ......

The last stage sets the pace, with its heads right before the backwards that wait for them. The time
it spends on them is idle time of all other devices, and that is where theirs go: each into the
first gap between the F of the last stage and its backward. Where those gaps are depends on how long
F, BW and H last, so the rows suit the costs they were made for.

On `P` devices 1F1B keeps `min(M, P - d + barriers)` microbatches' activations on device `d`. With
free hops it also keeps its idle time, `(P - 1) (F + BW)` each, with S and H in the work of all:
with one barrier wherever H is no longer than BW; with two, where S and H together are no longer
than BW and S no longer than H, on up to four devices. On more, for about one choice of costs in a
hundred, a gap is left between an S and an H that suits neither, and devices idle a little more.
Other schedules stay legal, and nothing more is promised of them.
"""

import collections
import dataclasses

from jaxpipe.schedule.action import HEADS, Action, Cell, Kind
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.gaps import Gaps
from jaxpipe.schedule.retime import fastest
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.simulate import check_shares, simulate
from jaxpipe.schedule.walk import DeadlockError, walk

_TIE = 1e-9
"""Times closer than this part of the largest cost are one: sums of thirds do not come out even."""

_LEAST = 1e-6
"""Actions are taken to last at least this part of the largest cost: times then tell their order."""

_Unit = tuple[int | None, int]
"""A microbatch and a slice of it: what one pass of the head works on."""


def share_head(
    schedule: Schedule, *, num_barriers: int = 1, costs: Costs | None = None
) -> Schedule:
    """Inserts the parts of the head, and lets devices run ahead so that nobody waits for them.

    Args:
        schedule: A synchronous schedule, whose head belongs to the last stage.
        num_barriers: 1 for a head in one pass (H), 2 for one in two passes (S, H).
        costs: What the actions cost, with `head` and `head_statistics` for one device's part.

    Raises:
        ValueError: If `num_barriers` is another number, or the schedule has heads already, updates
            weights on its way, or cannot run ahead.

    Example:
        >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
        >>> shared = share_head(one_f_one_b(2, 3), costs=Costs(head=1.0))
        >>> print(" ".join(map(str, shared.actions(1))))
        1F0 1F1 1H0 1BW0 1F2 1H1 1BW1 1H2 1BW2
    """
    if num_barriers not in (1, 2):
        raise ValueError(
            f"num_barriers={num_barriers}, but a head has one barrier or two; use 1 for one pass "
            "(H), 2 for two (S and H)"
        )
    costs = Costs() if costs is None else costs
    check_shares(schedule, costs)
    for action in schedule.positions:
        if action.kind in HEADS:
            raise ValueError(
                f"schedule {schedule.name!r} shares its head out already ({action}); use the "
                "schedule it was made of"
            )
        if action.kind is Kind.U:
            raise ValueError(
                f"schedule {schedule.name!r} updates weights within the step ({action}), and a "
                "device that runs ahead would read other versions; use a synchronous schedule"
            )
    ahead = _run_ahead(schedule, num_barriers * schedule.num_chunks)
    passes = (Kind.S, Kind.H)[2 - num_barriers :]
    paced = _paced_by_last_stage(ahead, passes)
    tried = []
    for from_right in [(), (Kind.H,), (Kind.S,), (Kind.S, Kind.H)]:
        filled, fits = _fill_gaps(paced, passes, costs, from_right)
        if fits:
            return filled
        tried.append(filled)
    return fastest(tried, costs)


def _run_ahead(schedule: Schedule, num_forwards: int) -> Schedule:
    """The same rows, with every forward where the one `num_forwards` before it stood."""
    rows = []
    for row in schedule.rows:
        forwards = collections.deque(cell for cell in row if _is_forward(cell))
        cells = [forwards.popleft() for _ in range(min(num_forwards, len(forwards)))]
        for cell in row:
            if not _is_forward(cell):
                cells.append(cell)
            elif forwards:
                cells.append(forwards.popleft())
        rows.append(tuple(cells))
    ahead = dataclasses.replace(schedule, rows=tuple(rows))
    try:
        for _ in walk(ahead):
            pass
    except DeadlockError as deadlock:
        raise ValueError(
            f"the devices of schedule {schedule.name!r} cannot run ahead of its backwards: they "
            f"would wait for each other ({', '.join(deadlock.links)}); use schedule '1f1b'"
        ) from None
    return ahead


def _is_forward(cell: Cell) -> bool:
    """Whether a cell is a forward alone; one issued beside a backward stays with it."""
    return len(cell) == 1 and cell[0].kind is Kind.F


def _paced_by_last_stage(ahead: Schedule, passes: tuple[Kind, ...]) -> Schedule:
    """Heads on the devices of the last stage alone, right before the backwards that wait for them.

    An S stands one H earlier, so that there is time for the barrier between the two:

        F0 F1 F2  S0 S1 H0 BW0  F3 S2 H1 BW1  ...

    Where nothing is trained they stand behind the F instead. Their parts get numbers of no device,
    so that nothing waits for parts that are not there yet.
    """
    last = ahead.num_stages - 1
    is_trained = ahead.backward[last] is not Backward.NONE
    triggers = (Kind.B, Kind.BW) if is_trained else (Kind.F,)
    rows = []
    for device, row in enumerate(ahead.rows):
        part = ahead.num_devices + device
        order = [unit for cell in row for unit in _units(cell, last, triggers)]
        has_forward: set[_Unit] = set()
        has_statistics: set[_Unit] = set()
        num_heads = 0
        cells: list[Cell] = []
        for cell in row:
            if not is_trained:
                cells.append(cell)
            has_forward.update(_units(cell, last, (Kind.F,)))
            for unit in _units(cell, last, triggers):
                if Kind.S in passes:
                    for each in order[num_heads : num_heads + 2]:
                        if each in has_forward - has_statistics:
                            cells.append((Action(Kind.S, part, *each),))
                            has_statistics.add(each)
                cells.append((Action(Kind.H, part, *unit),))
                num_heads += 1
            if is_trained:
                cells.append(cell)
        rows.append(tuple(cells))
    return dataclasses.replace(ahead, rows=tuple(rows))


def _units(cell: Cell, stage: int, kinds: tuple[Kind, ...]) -> list[_Unit]:
    return [
        (action.microbatch, action.slice)
        for action in cell
        if action.stage == stage and action.kind in kinds
    ]


def _fill_gaps(
    paced: Schedule, passes: tuple[Kind, ...], costs: Costs, from_right: tuple[Kind, ...]
) -> tuple[Schedule, bool]:
    """The other parts of the heads, each in the first gap of its device that is in time.

    A part that fits nowhere is issued as soon as it can be, and delays what stands behind it.
    Between the parts of different kinds gaps can be left that suit neither: kinds in `from_right`
    take a gap from its end.

    Returns:
        The schedule, and whether all parts fit.
    """
    costs, tie = _lasting(costs)
    timed = simulate(paced, costs)
    sizes = {"num_chunks": paced.num_chunks, "num_slices": paced.num_slices}
    last = paced.num_stages - 1
    # For every device, what it issues and when; the number keeps what starts together in order.
    issued: list[list[tuple[float, int, Cell]]] = []
    gaps: list[Gaps] = []
    all_fit = True
    for device, row in enumerate(paced.rows):
        own = [(cell[0]._replace(stage=device),) if cell[0].kind in HEADS else cell for cell in row]
        times = [timed.starts[cell[0]] for cell in row]
        issued.append(list(zip(times, range(len(row)), own, strict=True)))
        gaps.append(Gaps([(timed.starts[c[0]], timed.ends[c[0]]) for c in row], tie=tie))

    own_heads = [action for action in timed.starts if action.kind is Kind.H]
    for own_head in sorted(own_heads, key=lambda action: timed.starts[action]):
        _, part, microbatch, slice_, _ = own_head
        own_device = part - paced.num_devices
        forward = paced.by_role["F", last, microbatch, slice_]
        backward = paced.by_role.get(("B", last, microbatch, slice_))
        ready = timed.ends[forward]
        for kind in passes:
            own = own_head._replace(kind=kind)
            if kind is Kind.S:
                until = timed.starts[own_head]
            else:
                until = timed.starts[backward] if backward else float("inf")
            duration = costs.of(own, **sizes)
            ends = [timed.ends[own]]
            for device in range(paced.num_devices):
                if device == own_device:
                    continue
                earliest, latest = ready + costs.hop, until - costs.hop
                start = gaps[device].take(
                    duration, earliest=earliest, latest=latest, from_right=kind in from_right
                )
                if start is None:
                    start, all_fit = ready, False
                issued[device].append((start, -1, (own._replace(stage=device),)))
                ends.append(start + duration)
            ready = min(max(ends), until)
    rows = tuple(
        tuple(cell for _, _, cell in sorted(row, key=lambda each: each[:2])) for row in issued
    )
    return dataclasses.replace(paced, rows=rows), all_fit


def _lasting(costs: Costs) -> tuple[Costs, float]:
    """The costs with nothing that takes no time, and what time is too short to matter."""
    names = ("forward", "backward_input", "backward_weight", "recompute", "head", "head_statistics")
    largest = max(getattr(costs, name) for name in names) or 1.0
    floors = {name: max(getattr(costs, name), _LEAST * largest) for name in names}
    return dataclasses.replace(costs, **floors), _TIE * largest
