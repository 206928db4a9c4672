"""Chrome traces."""

import json

from jaxpipe.draw import to_trace
from jaxpipe.schedule import Costs, make_schedule, simulate


def events(simulation, **options):
    return json.loads(to_trace(simulation, **options))["traceEvents"]


def test_every_action_is_a_slice_with_its_time():
    simulation = simulate(make_schedule("interleaved_1f1b", 4, 8), Costs(hop=0.5))
    slices = {event["name"]: event for event in events(simulation) if event["ph"] == "X"}
    assert set(slices) == {str(action) for action in simulation.starts}
    for action, start in simulation.starts.items():
        slice_ = slices[str(action)]
        assert slice_["ts"] == start * 1000
        assert slice_["ts"] + slice_["dur"] == (simulation.ends[action]) * 1000
        assert slice_["tid"] == action.stage % 4
        assert slice_["args"]["microbatch"] == action.microbatch


def test_devices_are_named_and_counted():
    simulation = simulate(make_schedule("1f1b", 3, 4))
    found = events(simulation)
    assert [e["args"]["name"] for e in found if e["name"] == "thread_name"] == [
        "device 0",
        "device 1",
        "device 2",
    ]
    for device in range(3):
        counts = [e["args"]["live"] for e in found if e["name"].endswith(f"device {device}")]
        assert max(counts) == 3 - device
        assert counts[-1] == 0


def test_every_message_is_an_arrow_from_sender_to_receiver():
    simulation = simulate(make_schedule("1f1b", 3, 4))
    found = events(simulation, microseconds=1.0)
    starts = {event["id"]: event for event in found if event["ph"] == "s"}
    ends = {event["id"]: event for event in found if event["ph"] == "f"}
    assert len(starts) == len(ends) == simulation.messages.total
    for arrow, start in starts.items():
        assert abs(start["tid"] - ends[arrow]["tid"]) == 1
        assert start["ts"] <= ends[arrow]["ts"]
