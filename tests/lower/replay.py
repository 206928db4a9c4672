"""What the compiled loop does with a table, in plain Python and with names instead of arrays.

This is the executable specification of the lowering: messages arrive, a forward and a backward run
where the table says so, and each must find in its slots exactly the value it needs.
"""

import dataclasses

import numpy as np

from jaxpipe.lower import UNWANTED, Column, TableSizes
from jaxpipe.schedule import Action, Kind, Schedule

Value = tuple[str, int, int]
"""What a value is, of which stage, and of which microbatch."""

NOTHING: Value = ("nothing", -1, -1)


@dataclasses.dataclass
class Device:
    """The buffers of one device.

    Attributes:
        activations: Received inputs of stages; the first slot takes what nobody wants.
        gradients: Gradients of the outputs of stages; the same.
        stashes: What forwards keep for backwards.
        weight_stashes: What forwards keep for W, where backwards are split.
        kept: What B leaves for W.
        send_right: The last output, which is sent again until there is another.
        send_left: The last input gradient.
        issued: What has run.
    """

    activations: list[Value]
    gradients: list[Value]
    stashes: list[Value]
    weight_stashes: list[Value]
    kept: list[Value]
    send_right: Value = NOTHING
    send_left: Value = NOTHING
    issued: list[Action] = dataclasses.field(default_factory=list)


def replay(table: np.ndarray, schedule: Schedule, sizes: TableSizes) -> list[list[Action]]:
    """Runs a table and returns what each device ran, in order.

    Fails where an action reads a slot that holds another value than the one it needs.
    """
    devices = [
        Device(
            activations=[NOTHING] * sizes.num_activations,
            gradients=[NOTHING] * sizes.num_gradients,
            stashes=[NOTHING] * sizes.num_stashes,
            weight_stashes=[NOTHING] * sizes.num_weight_stashes,
            kept=[NOTHING] * sizes.num_weight_gradients,
        )
        for _ in range(schedule.num_devices)
    ]
    for rows in table:
        _exchange(devices, rows)
        for device, row in zip(devices, rows, strict=True):
            if row[Column.FORWARD]:
                _forward(device, row, schedule.num_stages)
            if row[Column.BACKWARD]:
                _backward(device, row)
            if row[Column.WEIGHT]:
                _weight(device, row)
    return [device.issued for device in devices]


def _exchange(devices: list[Device], rows: np.ndarray) -> None:
    """Every device sends in every tick, wanted or not, round the ring."""
    sent_right = [device.send_right for device in devices]
    sent_left = [device.send_left for device in devices]
    for number, (device, row) in enumerate(zip(devices, rows, strict=True)):
        device.activations[row[Column.ARRIVING_ACTIVATION]] = sent_right[number - 1]
        device.gradients[row[Column.ARRIVING_GRADIENT]] = sent_left[(number + 1) % len(devices)]


def _forward(device: Device, row: np.ndarray, num_stages: int) -> None:
    stage, microbatch = int(row[Column.FORWARD_STAGE]), int(row[Column.FORWARD_MICROBATCH])
    action = Action(Kind.F, stage, microbatch)
    if stage > 0:
        assert row[Column.FORWARD_ACTIVATION] != UNWANTED, action
        found = device.activations[row[Column.FORWARD_ACTIVATION]]
        assert found == ("input", stage, microbatch), (str(action), found)
    device.stashes[row[Column.FORWARD_STASH]] = ("stash", stage, microbatch)
    if device.weight_stashes:
        device.weight_stashes[row[Column.FORWARD_WEIGHT_STASH]] = ("stash", stage, microbatch)
    if stage == num_stages - 1:
        assert row[Column.FORWARD_GRADIENT] != UNWANTED, action
        device.gradients[row[Column.FORWARD_GRADIENT]] = ("gradient", stage, microbatch)
    device.send_right = ("input", stage + 1, microbatch)
    device.issued.append(action)


def _backward(device: Device, row: np.ndarray) -> None:
    stage, microbatch = int(row[Column.BACKWARD_STAGE]), int(row[Column.BACKWARD_MICROBATCH])
    action = Action(Kind.B if device.kept else Kind.BW, stage, microbatch)
    stash = device.stashes[row[Column.BACKWARD_STASH]]
    assert stash == ("stash", stage, microbatch), (str(action), stash)
    gradient = device.gradients[row[Column.BACKWARD_GRADIENT]]
    assert gradient == ("gradient", stage, microbatch), (str(action), gradient)
    if device.kept:
        waiting = device.weight_stashes[row[Column.BACKWARD_WEIGHT_STASH]]
        assert waiting == ("stash", stage, microbatch), (str(action), waiting)
        device.kept[row[Column.BACKWARD_KEPT]] = ("kept", stage, microbatch)
    device.send_left = ("gradient", stage - 1, microbatch)
    device.issued.append(action)


def _weight(device: Device, row: np.ndarray) -> None:
    stage, microbatch = int(row[Column.WEIGHT_STAGE]), int(row[Column.WEIGHT_MICROBATCH])
    action = Action(Kind.W, stage, microbatch)
    stash = device.weight_stashes[row[Column.WEIGHT_STASH]]
    assert stash == ("stash", stage, microbatch), (str(action), stash)
    kept = device.kept[row[Column.WEIGHT_KEPT]]
    assert kept == ("kept", stage, microbatch), (str(action), kept)
    before = device.issued[-1] if device.issued else None
    if before == Action(Kind.B, stage, microbatch) and row[Column.BACKWARD]:
        device.issued[-1] = Action(Kind.BW, stage, microbatch)  # both in one tick
    else:
        device.issued.append(action)
