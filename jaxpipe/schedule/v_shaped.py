"""V-Half, V-Min and 1F1B-V: V schedules that trade idle time for activations.

Qi, Wan, Amar, Lin: Pipeline Parallelism with Controllable Memory (2024), arXiv 2405.15362.

Rule: device `d` holds stages `d` and `2 P - 1 - d`, so that a device whose first chunk lives long
has a second one that lives briefly, and all keep equally many. Every microbatch repeats one
building block, six units after the one before; with F = B = W = 1 and an `e` that keeps the actions
of a device apart, the block runs on device `d`

              F of stage d   F of 2P-1-d     B of 2P-1-d         B of stage d
    V-Min     d              2P - 1 - d      2P + e + d          4P + e - 1 - d
    V-Half    2d             3P - 2 - d      3P + e - 1 + 2d     6P + e - 2 - d

and W at the first free time behind its B. The 1F1B-V block, whose BW takes two units, puts every
action at the first time that is free on its device. The blocks are then squeezed together: devices
may overtake what they would wait for, under the cap on activations of the blocks as they stand, and
the fastest of a few orders is kept.

Sizes: any number of devices `P` and of microbatches `M`.
Memory in chunks' activations from F to W, of the `2 P` that 1F1B's first device keeps: about half
for V-Half, a third for V-Min (and a few more), two thirds for 1F1B-V.
Idle time: V-Half about half of 1F1B's and V-Min about two thirds. At P = 4, M = 8 and
F = B = W = 1 V-Half idles 2.5, V-Min 5.5, 1F1B-V (whose W is fused) 7.5, and 1F1B 9.
"""

import itertools
from collections.abc import Callable

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.greedy import greedy
from jaxpipe.schedule.live import peak_live
from jaxpipe.schedule.placement import v_placement
from jaxpipe.schedule.reorder import reorder
from jaxpipe.schedule.retime import fastest
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes
from jaxpipe.schedule.timetable import rows_in_planned_order

_PERIOD = 6

Block = list[tuple[int, int, int, int]]
"""For every device, when it runs F of its first and its second stage, B of its second and first."""


def v_half(num_devices: int, num_microbatches: int) -> Schedule:
    """V-Half: about half of 1F1B's activations and half of its bubble.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    P = num_devices
    block = _apart(P, lambda d, e: (2 * d, 3 * P - 2 - d, 3 * P + e - 1 + 2 * d, 6 * P + e - 2 - d))
    return _squeezed("v_half", block, num_microbatches, split=True)


def v_min(num_devices: int, num_microbatches: int) -> Schedule:
    """V-Min: about a third of 1F1B's activations and two thirds of its bubble.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    P = num_devices
    block = _apart(P, lambda d, e: (d, 2 * P - 1 - d, 2 * P + e + d, 4 * P + e - 1 - d))
    return _squeezed("v_min", block, num_microbatches, split=True)


def one_f_one_b_v(num_devices: int, num_microbatches: int) -> Schedule:
    """1F1B-V: two thirds of 1F1B's activations, without splitting the backward.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    return _squeezed("1f1b_v", _first_fit(num_devices), num_microbatches, split=False)


def _apart(num_devices: int, times: Callable[[int, int], tuple[int, int, int, int]]) -> Block:
    """The block with the smallest `e` at which no two actions of a device fall together."""
    for e in range(_PERIOD):
        block = [times(device, e) for device in range(num_devices)]
        if all(len({time % _PERIOD for time in row}) == len(row) for row in block):
            return block
    return [times(device, 0) for device in range(num_devices)]


def _first_fit(num_devices: int) -> Block:
    """The block that puts F, then BW of two units, at the first free time of the period."""
    taken: list[set[int]] = [set() for _ in range(num_devices)]
    times: list[list[int]] = [[] for _ in range(num_devices)]
    forth = list(range(num_devices))
    # The F of the way down and up, then the BW of the way up and down.
    ways = [(forth, 1), (forth[::-1], 1), (forth, 2), (forth[::-1], 2)]
    time = 0
    for devices, duration in ways:
        for device in devices:
            while any((time + unit) % _PERIOD in taken[device] for unit in range(duration)):
                time += 1
            taken[device].update((time + unit) % _PERIOD for unit in range(duration))
            times[device].append(time)
            time += duration
    return [(row[0], row[1], row[2], row[3]) for row in times]


def _weight_times(times: tuple[int, int, int, int]) -> tuple[int, int]:
    """When W of the second and of the first stage run: each at the first free time behind its B."""
    taken = {time % _PERIOD for time in times}
    found = []
    for time in times[2:]:
        time += 1
        while time % _PERIOD in taken:
            time += 1
        taken.add(time % _PERIOD)
        found.append(time)
    return found[0], found[1]


def _squeezed(name: str, block: Block, num_microbatches: int, *, split: bool) -> Schedule:
    num_devices = len(block)
    placement = v_placement(num_devices)
    backward = Kind.B if split else Kind.BW
    planned = []
    for microbatch, (device, times) in itertools.product(range(num_microbatches), enumerate(block)):
        first, second = device, 2 * num_devices - 1 - device
        actions = [
            (times[0], Action(Kind.F, first, microbatch)),
            (times[1], Action(Kind.F, second, microbatch)),
            (times[2], Action(backward, second, microbatch)),
            (times[3], Action(backward, first, microbatch)),
        ]
        if split:
            of_second, of_first = _weight_times(times)
            actions += [
                (of_second, Action(Kind.W, second, microbatch)),
                (of_first, Action(Kind.W, first, microbatch)),
            ]
        planned += [(float(time + _PERIOD * microbatch), action) for time, action in actions]
    blocks = Schedule.of_actions(
        rows_in_planned_order(planned, placement=placement, num_devices=num_devices),
        name=name,
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=placement,
        backward=(Backward.FULL,) * (2 * num_devices),
    )
    # Below four, two chunks leave no room for one activation to come while another one goes.
    cap = max(4, *peak_live(blocks, until=Kind.W))
    candidates = [
        reorder(blocks, costs=None, activation_cap=cap, look_ahead=look_ahead)
        for look_ahead in ((0, 2, 4) if split else (0, 2, 4, 8))
    ]
    candidates.append(blocks)
    if not split:
        candidates.append(
            greedy(
                num_devices,
                num_microbatches,
                num_chunks=2,
                activation_cap=cap,
                forwards_first=True,
                name=name,
            )
        )
    return fastest(candidates)
