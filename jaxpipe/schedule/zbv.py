"""ZBV: zero bubble on a V, with the memory of 1F1B.

Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism (2023), arXiv 2401.10241, section 6; the order
is that of torch's `ScheduleZBVZeroBubble`.

Rule: device `d` holds stages `d` (way down, chunk 0) and `2 P - 1 - d` (way up, chunk 1). With F, B
and W of chunk `c` written as Fc, Bc and Wc, it issues

    2 (P - d) - 1 times   F0
    d                     F1, F0
    P - d                 F1, B1, W1
    while F are left      [F0], B0, W0, F1, B1, W1
    d                     B0, B1
    P - d                 B0, W0
    and then              what is left of W1, then of W0

The rule is made for at least `2 P - 1` microbatches. With fewer it is run as if there were as many
and the rest left out; W then fills the idle time that this leaves, under the same cap.

Sizes: any number of devices `P` and of microbatches `M`.
Idle: none within a device's span when F = B = W and `M >= 2 P - 1`; within one step
`(P - 1) F / 2`, the least possible.
Memory: at most `2 P` chunks' activations from F to W, which is 1F1B's `P`.
"""

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.fill_weights import fill_weights
from jaxpipe.schedule.placement import v_placement
from jaxpipe.schedule.schedule import Backward, Schedule
from jaxpipe.schedule.sizes import check_sizes


def zbv(num_devices: int, num_microbatches: int, fill: bool = True) -> Schedule:
    """ZBV.

    Args:
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        fill: Whether W fills idle time where there are fewer than `2 P - 1` microbatches.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in zbv(1, 1).actions(0)]
        ['0F0', '1F0', '1B0', '1W0', '0B0', '0W0']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)
    schedule = Schedule.of_actions(
        [_row(device, num_devices, num_microbatches) for device in range(num_devices)],
        name="zbv",
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=v_placement(num_devices),
        backward=(Backward.FULL,) * (2 * num_devices),
    )
    if fill and num_microbatches < 2 * num_devices - 1:
        return fill_weights(schedule, activation_cap=2 * num_devices)
    return schedule


def _row(device: int, num_devices: int, num_microbatches: int) -> list[Action]:
    stages = (device, 2 * num_devices - 1 - device)
    planned = max(2 * num_devices - 1, num_microbatches)
    rest = num_devices - device
    row: list[Action] = []
    counts: dict[tuple[str, int], int] = {(kind, chunk): 0 for kind in "FBW" for chunk in (0, 1)}

    def issue(*names: str) -> None:
        for name in names:
            kind, chunk = name[0], int(name[1])
            row.append(Action(Kind(kind), stages[chunk], counts[kind, chunk]))
            counts[kind, chunk] += 1

    for _ in range(2 * rest - 1):
        issue("F0")
    for _ in range(device):
        issue("F1", "F0")
    for _ in range(rest):
        issue("F1", "B1", "W1")
    while counts["F", 1] < planned:
        if counts["F", 0] < planned:
            issue("F0")
        issue("B0", "W0", "F1", "B1", "W1")
    for _ in range(device):
        issue("B0", "B1")
    for _ in range(rest):
        issue("B0", "W0")
    while counts["W", 1] < planned:
        issue("W1")
    while counts["W", 0] < planned:
        issue("W0")
    return [action for action in row if (action.microbatch or 0) < num_microbatches]
