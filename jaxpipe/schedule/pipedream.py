"""PipeDream and PipeDream-2BW: 1F1B whose weights change while microbatches are under way.

Harlap, Narayanan, Phanishayee and others: PipeDream: Fast and Efficient Pipeline Parallel DNN
Training (2018), arXiv 1806.03377. Narayanan, Phanishayee, Shi, Chen, Zaharia: Memory-Efficient
Pipeline-Parallel DNN Training (2020), arXiv 2006.09503 (2BW).

Rule: the order is that of 1F1B, and the pipeline is never drained between updates. Version 0 is the
initial weights. Microbatch `k` reads, in its F and its BW alike,

    PipeDream   version max(0, k - (P - 1 - d)) on device d; an update follows every BW
    2BW         version max(0, k // m - 1) on every device; an update follows every m-th BW

Two devices, three microbatches of PipeDream (`@` marks the version, `U` the update that makes it):

    device 0   F0   F1     BW0    U@1  F2@1   BW1  U@2  BW2@1  U@3
    device 1   F0   BW0    U@1    F1@1 BW1@1  U@2  F2@2 BW2@2  U@3

Sizes: any number of devices `P` and of microbatches `M`. 2BW needs `m >= P`, or a microbatch would
read a version that its first stages have not made yet; a last, smaller group is updated, too.
Bubble: only the ramp at the very start and end of training.
Memory: activations as 1F1B; PipeDream keeps `min(M, P - d)` versions of the weights on device `d`,
2BW two versions everywhere.
"""

import dataclasses
from collections.abc import Callable

from jaxpipe.schedule.action import Action, Cell, Kind
from jaxpipe.schedule.one_f_one_b import one_f_one_b
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.sizes import check_sizes


def pipedream(num_devices: int, num_microbatches: int) -> Schedule:
    """PipeDream with weight stashing.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1.

    Example:
        >>> [str(action) for action in pipedream(1, 2).actions(0)]
        ['0F0', '0BW0', '0U@1', '0F1@1', '0BW1@1', '0U@2']
    """
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches)

    def version(device: int, microbatch: int) -> int:
        return max(0, microbatch - (num_devices - 1 - device))

    return _asynchronous("pipedream", num_devices, num_microbatches, 1, version)


def pipedream_2bw(
    num_devices: int, num_microbatches: int, update_every: int | None = None
) -> Schedule:
    """PipeDream-2BW: two versions of the weights, gradients one update late.

    Args:
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of the run.
        update_every: Microbatches per update; by default as many as devices.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If a size is below 1, or `update_every` below the number of devices.

    Example:
        >>> [str(action) for action in pipedream_2bw(1, 3, 1).actions(0)]
        ['0F0', '0BW0', '0U@1', '0F1', '0BW1', '0U@2', '0F2@1', '0BW2@1', '0U@3']
    """
    group = num_devices if update_every is None else update_every
    check_sizes(num_devices=num_devices, num_microbatches=num_microbatches, update_every=group)
    if group < num_devices:
        raise ValueError(
            f"update_every={group} is below num_devices={num_devices}: a microbatch would read a "
            f"version that the first stages have not made yet; use update_every={num_devices} or "
            "more, or schedule 'pipedream'"
        )

    def version(device: int, microbatch: int) -> int:
        return max(0, microbatch // group - 1)

    return _asynchronous("pipedream_2bw", num_devices, num_microbatches, group, version)


def _asynchronous(
    name: str,
    num_devices: int,
    num_microbatches: int,
    update_every: int,
    version_of: Callable[[int, int], int],
) -> Schedule:
    synchronous = one_f_one_b(num_devices, num_microbatches)
    rows = []
    for device in range(num_devices):
        row: list[Cell] = []
        num_backwards = num_updates = 0
        for action in synchronous.actions(device):
            row.append((action._replace(version=version_of(device, action.microbatch or 0)),))
            num_backwards += action.kind is Kind.BW
            if action.kind is Kind.BW and (
                num_backwards % update_every == 0 or num_backwards == num_microbatches
            ):
                num_updates += 1
                row.append((Action(Kind.U, device, None, version=num_updates),))
        rows.append(tuple(row))
    return dataclasses.replace(synchronous, name=name, rows=tuple(rows))
