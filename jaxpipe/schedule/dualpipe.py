"""DualPipe and DualPipeV: the forward of one microbatch beside the backward of another.

DeepSeek-AI: DeepSeek-V3 Technical Report (2024), arXiv 2412.19437, section 3.2.1; DualPipeV, the
"cut in half" form without mirrored weights, is from the authors' repository.

Rule: a device has two phases, 0 and 1: in DualPipe the two directions, in DualPipeV the way down
and the way up the V. With `n` devices on a way and a device `d` from its start it issues, in eight
steps (`F&BW` are issued together; `m` microbatches go through each phase):

    1  2 (n - d - 1) times   F0
    2  d + 1                 F0, F1
    3  n - d - 1             B1, W1, F1
    4  m - 2 n + d + 1       F0&BW1, F1&BW0
    5  n - d - 1             BW1, F1&BW0
    6  d + 1                 BW1, BW0; from the middle on only their B
    7  n - d - 1             W, B0
    8  d + 1                 W

The very first pair of step 4 at the turning point runs one after the other: its BW needs its F.

Sizes: DualPipe takes an even number of devices `P`, because both directions turn in the middle, or
one; DualPipeV any. DualPipe takes an even number of microbatches `M`; both take `M >= 2 P`, since
step 4 cannot run less than no times.
Idle per device, `FB` being what a pair costs: DualPipe `(P / 2 - 1) (FB + BW - 3 W)`; DualPipeV
`(P - 1) (FB + BW - 3 W)` with the costs of a chunk, half a device's share.
Memory: DualPipe `P + 1` microbatches' activations, and the weights twice; DualPipeV `2 P + 1`
chunks' activations.
"""

import collections
from collections.abc import Callable

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.placement import bidirectional_placement, v_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def dualpipe(num_devices: int, num_microbatches: int) -> Schedule:
    """DualPipe: every stage on two devices, one per direction.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If the number of devices is odd and not 1, that of microbatches is odd, or there
            are fewer than two microbatches per device.

    Example:
        >>> from jaxpipe.schedule.notation import cell_text
        >>> [cell_text(cell) for cell in dualpipe(2, 4).rows[0]][:5]
        ['0F0', '1F2', '0F1', '1BW2', '(1F3;0BW0)OVERLAP']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    if num_devices % 2 and num_devices > 1:
        raise ValueError(
            f"dualpipe turns between the two middle devices, so num_devices={num_devices} must be "
            f"even (or 1); use {num_devices - 1} or {num_devices + 1} devices, or 'dualpipe_v'"
        )
    _check_microbatches("dualpipe", num_devices, num_microbatches, multiple=2)
    placement = bidirectional_placement(num_devices, num_microbatches)
    length = max(1, num_devices // 2)
    half = num_microbatches // 2
    rows = []
    for device in range(num_devices):
        mirrored = num_devices - 1 - device
        # Phase 0 is the direction that starts at this half of the devices.
        starts_here = device < length
        stages = (device, mirrored) if starts_here else (mirrored, device)
        firsts = (0, half) if starts_here else (half, 0)
        rows.append(
            _eight_steps(
                stages=stages,
                firsts=firsts,
                num_microbatches=half,
                length=length,
                distance=min(device, mirrored),
            )
        )
    return Schedule(
        name="dualpipe",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=placement,
        backward=(Backward.FULL,) * num_devices,
        rows=tuple(rows),
    )


def dualpipe_v(num_devices: int, num_microbatches: int) -> Schedule:
    """DualPipeV: two chunks per device, laid out as a V.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If there are fewer than two microbatches per device.

    Example:
        >>> from jaxpipe.schedule.notation import cell_text
        >>> [cell_text(cell) for cell in dualpipe_v(1, 2).rows[0]][:4]
        ['0F0', '1F0', '0F1', '1BW0']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    _check_microbatches("dualpipe_v", num_devices, num_microbatches, multiple=1)
    rows = tuple(
        _eight_steps(
            stages=(device, 2 * num_devices - 1 - device),
            firsts=(0, 0),
            num_microbatches=num_microbatches,
            length=num_devices,
            distance=device,
        )
        for device in range(num_devices)
    )
    return Schedule(
        name="dualpipe_v",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=v_placement(num_devices),
        backward=(Backward.FULL,) * (2 * num_devices),
        rows=rows,
    )


def _check_microbatches(
    name: str, num_devices: int, num_microbatches: int, *, multiple: int
) -> None:
    least = 2 * num_devices
    if num_microbatches < least or num_microbatches % multiple:
        nearest = max(least, num_microbatches + num_microbatches % multiple)
        even = "an even number of microbatches and " if multiple == 2 else ""
        raise ValueError(
            f"{name} needs {even}at least two microbatches per device, so that forwards and "
            f"backwards can run in pairs, but num_microbatches={num_microbatches} on "
            f"num_devices={num_devices}; "
            f"use num_microbatches={nearest}, or schedule 'zb_h1'"
        )


def _eight_steps(
    *,
    stages: tuple[int, int],
    firsts: tuple[int, int],
    num_microbatches: int,
    length: int,
    distance: int,
) -> tuple[Cell, ...]:
    """One device's row.

    Args:
        stages: The device's stage in each phase.
        firsts: The first microbatch of each phase.
        num_microbatches: Microbatches of each phase.
        length: `n` of the module's rule.
        distance: `d` of the module's rule.
    """
    row: list[Cell] = []
    counts: dict[tuple[Kind, int], int] = collections.defaultdict(int)
    weights: collections.deque[Action] = collections.deque()
    ramp = length - distance - 1

    def action(kind: Kind, phase: int) -> Action:
        # B and BW count together: they take the microbatches in turn.
        counted = Kind.F if kind is Kind.F else Kind.BW
        microbatch = firsts[phase] + counts[counted, phase]
        counts[counted, phase] += 1
        return Action(kind, stages[phase], microbatch)

    def forward(phase: int) -> None:
        row.append((action(Kind.F, phase),))

    def backward(phase: int, *, with_weights: bool = True) -> None:
        done = action(Kind.BW if with_weights else Kind.B, phase)
        row.append((done,))
        if not with_weights:
            weights.append(done._replace(kind=Kind.W))

    def weight() -> None:
        row.append((weights.popleft(),))

    def together(forward_phase: int) -> None:
        row.append((action(Kind.F, forward_phase), action(Kind.BW, 1 - forward_phase)))

    def repeat(times: int, *steps: Callable[[], None]) -> None:
        for _ in range(times):
            for step in steps:
                step()

    repeat(2 * ramp, lambda: forward(0))
    repeat(distance + 1, lambda: forward(0), lambda: forward(1))
    repeat(ramp, lambda: backward(1, with_weights=False), weight, lambda: forward(1))
    for pair in range(num_microbatches - 2 * length + distance + 1):
        if pair == 0 and ramp == 0:
            forward(0)
            backward(1)
        else:
            together(0)
        together(1)
    repeat(ramp, lambda: backward(1), lambda: together(1))
    # 2 (d + 1) backwards, whose second half leaves its W for the end.
    for turn in range(2 * (distance + 1)):
        backward(1 - turn % 2, with_weights=turn < distance + 1)
    repeat(ramp, weight, lambda: backward(0, with_weights=False))
    repeat(distance + 1, weight)
    return tuple(row)
