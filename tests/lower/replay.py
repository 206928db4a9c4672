"""What the compiled loop does with a table, in plain Python and with names instead of arrays.

This is the executable specification of the lowering: messages arrive, the phases of a tick run
where the table says so, and each must find in its slots exactly the value it needs.
"""

import dataclasses

import numpy as np

from jaxpipe.lower import (
    UNWANTED,
    BackwardPass,
    Column,
    Forward,
    Pool,
    StateColumns,
    TableSizes,
    wires_of,
)
from jaxpipe.schedule import Action, Kind, Schedule

Value = tuple[str, int, int, int]
"""What a value is, of which stage, of which microbatch, and of which slice."""

Role = tuple[int, int, int]
"""Stage, microbatch and slice."""

NOTHING: Value = ("nothing", -1, -1, -1)


@dataclasses.dataclass
class Device:
    """The buffers of one device.

    Attributes:
        activations: Received inputs of stages; the first slot takes what nobody wants.
        gradients: Gradients of the outputs of stages; the same.
        inputs: Inputs of stages, kept for R.
        stashes: What forwards keep for backwards.
        weight_stashes: What forwards keep for W, where backwards are split.
        kept: What B leaves for W.
        states: What slices add to the states of stages.
        state_gradients: The gradients of these.
        send_activation: The last output, which is sent again until there is another.
        send_gradient: The last input gradient.
        issued: What has run.
    """

    activations: list[Value]
    gradients: list[Value]
    inputs: list[Value]
    stashes: list[Value]
    weight_stashes: list[Value]
    kept: list[Value]
    states: list[Value]
    state_gradients: list[Value]
    send_activation: Value = NOTHING
    send_gradient: Value = NOTHING
    issued: list[Action] = dataclasses.field(default_factory=list)


def replay(table: np.ndarray, schedule: Schedule, sizes: TableSizes) -> list[list[Action]]:
    """Runs a table and returns what each device ran, in order.

    Fails where an action reads a slot that holds another value than the one it needs.
    """
    devices = [
        Device(
            activations=[NOTHING] * sizes.num_activations,
            gradients=[NOTHING] * sizes.num_gradients,
            inputs=[NOTHING] * sizes.num_inputs,
            stashes=[NOTHING] * sizes.num_stashes,
            weight_stashes=[NOTHING] * sizes.num_weight_stashes,
            kept=[NOTHING] * sizes.num_weight_gradients,
            states=[NOTHING] * sizes.num_states,
            state_gradients=[NOTHING] * sizes.num_state_gradients,
        )
        for _ in range(schedule.num_devices)
    ]
    for rows in table:
        both = list(zip(devices, rows, strict=True))
        arriving = _messages(devices, rows, schedule, Pool.GRADIENT)
        if sizes.hop_ticks:
            arriving += _messages(devices, rows, schedule, Pool.ACTIVATION)
        for device, row in both:
            if row[Column.FORWARD]:
                _forward(device, row, schedule)
        if not sizes.hop_ticks:
            _deliver(arriving)
            arriving = _messages(devices, rows, schedule, Pool.ACTIVATION)
        for device, row in both:
            if row[Column.RECOMPUTE]:
                _recompute(device, row, schedule)
            if row[Column.BACKWARD]:
                _backward(device, row, schedule)
            if row[Column.WEIGHT]:
                _weight(device, row, schedule)
        _deliver(arriving)
    return [device.issued for device in devices]


Message = tuple[list[Value], int, Value]
"""The pool and the slot where a value arrives."""


def _messages(
    devices: list[Device], rows: np.ndarray, schedule: Schedule, pool: Pool
) -> list[Message]:
    """Every device sends in every tick over every wire, wanted or not."""
    found: list[Message] = []
    for number, wire in enumerate(wires_of(schedule.placement)):
        if wire.pool is not pool:
            continue
        sources = {target: source for source, target in wire.pairs}
        for target, device in enumerate(devices):
            slot = int(rows[target][len(Column) + number])
            value = NOTHING
            if target in sources:
                sender = devices[sources[target]]
                value = sender.send_activation if pool is Pool.ACTIVATION else sender.send_gradient
            ring = device.activations if pool is Pool.ACTIVATION else device.gradients
            found.append((ring, slot, value))
    return found


def _deliver(messages: list[Message]) -> None:
    for ring, slot, value in messages:
        ring[slot] = value


def _identity(row: np.ndarray, first: Column, schedule: Schedule) -> Role:
    """Stage, microbatch and slice; the chunk must be the stage's."""
    stage, chunk, microbatch, slice_ = (int(value) for value in row[first : first + 4])
    assert chunk == schedule.placement.chunk(stage, microbatch)
    return stage, microbatch, slice_


def _columns(schedule: Schedule) -> StateColumns:
    return StateColumns.of(schedule.placement, schedule.num_slices)


def _check_states(
    ring: list[Value], row: np.ndarray, columns: range, kind: str, role: Role, count: int
) -> None:
    """The first `count` slices of a microbatch have left what is read of them."""
    stage, microbatch, _ = role
    for slice_, column in enumerate(columns[:count]):
        expected = (kind, stage, microbatch, slice_)
        assert ring[row[column]] == expected, (role, ring[row[column]], expected)


def _forward(device: Device, row: np.ndarray, schedule: Schedule) -> None:
    role = _identity(row, Column.FORWARD_STAGE, schedule)
    stage, microbatch, slice_ = role
    action, columns = Action(Kind.F, *role), _columns(schedule).forward
    if stage > 0:
        assert row[Column.FORWARD_ACTIVATION] != UNWANTED, action
        found = device.activations[row[Column.FORWARD_ACTIVATION]]
        assert found == ("input", *role), (str(action), found)
    if columns:
        _check_states(device.states, row, columns, "state", role, slice_)
        device.states[row[columns[slice_]]] = ("state", *role)
    if row[Column.FORWARD] == Forward.KEEPING:
        _fill_stash(device, row, Column.FORWARD_STASH, Column.FORWARD_WEIGHT_STASH, role)
    elif device.inputs:
        device.inputs[row[Column.FORWARD_INPUT]] = ("input", *role)
    if stage == schedule.num_stages - 1:
        if ("B", *role) in schedule.by_role:
            assert row[Column.FORWARD_GRADIENT] != UNWANTED, action
        device.gradients[row[Column.FORWARD_GRADIENT]] = ("gradient", *role)
    device.activations[row[Column.FORWARD_TURN]] = ("input", stage + 1, microbatch, slice_)
    device.send_activation = ("input", stage + 1, microbatch, slice_)
    device.issued.append(action)


def _fill_stash(
    device: Device, row: np.ndarray, stash: Column, weight_stash: Column, role: Role
) -> None:
    device.stashes[row[stash]] = ("stash", *role)
    if device.weight_stashes:
        device.weight_stashes[row[weight_stash]] = ("stash", *role)


def _recompute(device: Device, row: np.ndarray, schedule: Schedule) -> None:
    role = _identity(row, Column.RECOMPUTE_STAGE, schedule)
    action = Action(Kind.R, *role)
    found = device.inputs[row[Column.RECOMPUTE_INPUT]]
    assert found == ("input", *role), (str(action), found)
    columns = _columns(schedule).recompute
    _check_states(device.states, row, columns, "state", role, role[-1] + 1)
    _fill_stash(device, row, Column.RECOMPUTE_STASH, Column.RECOMPUTE_WEIGHT_STASH, role)
    device.issued.append(action)


def _backward(device: Device, row: np.ndarray, schedule: Schedule) -> None:
    role = _identity(row, Column.BACKWARD_STAGE, schedule)
    stage, microbatch, slice_ = role
    is_full = row[Column.BACKWARD] == BackwardPass.FULL
    action = schedule.by_role["B", *role]
    stash = device.stashes[row[Column.BACKWARD_STASH]]
    assert stash == ("stash", *role), (str(action), stash)
    gradient = device.gradients[row[Column.BACKWARD_GRADIENT]]
    assert gradient == ("gradient", *role), (str(action), gradient)
    columns = _columns(schedule)
    _check_states(device.states, row, columns.backward, "state", role, slice_ + 1)
    if slice_ + 1 < schedule.num_slices:
        _check_states(
            device.state_gradients, row, columns.gradient, "state gradient", role, slice_ + 1
        )
    for earlier, column in enumerate(columns.gradient[:slice_]):
        value = ("state gradient", stage, microbatch, earlier)
        device.state_gradients[row[column]] = value
    if device.kept:
        waiting = device.weight_stashes[row[Column.BACKWARD_WEIGHT_STASH]]
        assert waiting == ("stash", *role), (str(action), waiting)
        if is_full:
            device.kept[row[Column.BACKWARD_KEPT]] = ("kept", *role)
    device.gradients[row[Column.BACKWARD_TURN]] = ("gradient", stage - 1, microbatch, slice_)
    device.send_gradient = ("gradient", stage - 1, microbatch, slice_)
    device.issued.append(action)


def _weight(device: Device, row: np.ndarray, schedule: Schedule) -> None:
    role = _identity(row, Column.WEIGHT_STAGE, schedule)
    action = schedule.by_role["W", *role]
    stash = device.weight_stashes[row[Column.WEIGHT_STASH]]
    assert stash == ("stash", *role), (str(action), stash)
    kept = device.kept[row[Column.WEIGHT_KEPT]]
    assert kept == ("kept", *role), (str(action), kept)
    if action.kind is Kind.BW:
        assert device.issued[-1] == action, str(action)  # both in one tick
    else:
        device.issued.append(action)
