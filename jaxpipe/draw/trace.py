"""A timeline as Chrome trace JSON: open it in https://ui.perfetto.dev or chrome://tracing.

One process, a thread per device, a slice per action (colours are the viewer's), arrows for the
results that travel between devices, and a counter of kept activations per device.
"""

import json
from typing import Any

from jaxpipe.draw.colors import NAMES
from jaxpipe.draw.live import live_steps
from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.dependencies import dependencies
from jaxpipe.schedule.simulate import Simulation


def to_trace(simulation: Simulation, *, microseconds: float = 1000.0) -> str:
    """The trace of a simulation.

    Args:
        simulation: What to show.
        microseconds: How long one unit of the costs lasts on the viewer's scale.

    Example:
        >>> import json
        >>> from jaxpipe.schedule.gpipe import gpipe
        >>> from jaxpipe.schedule.simulate import simulate
        >>> events = json.loads(to_trace(simulate(gpipe(1, 1))))["traceEvents"]
        >>> [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
        [('0F0', 0.0, 1000.0), ('0BW0', 1000.0, 2000.0)]
    """
    schedule = simulation.schedule
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": schedule.name}}
    ]
    num_arrows = 0
    for device in range(schedule.num_devices):
        thread = {"pid": 0, "tid": device}
        events.append(
            {"ph": "M", **thread, "name": "thread_name", "args": {"name": f"device {device}"}}
        )
        for action in schedule.actions(device):
            events.append(_slice(simulation, action, thread, microseconds))
            for awaited in dependencies(schedule, action):
                sender = schedule.positions[awaited][0]
                if sender != device:
                    arrow = {"pid": 0, "cat": "message", "name": "message", "id": num_arrows}
                    sent = simulation.ends[awaited] * microseconds
                    taken = simulation.starts[action] * microseconds
                    # "bp": "e" ties the arrow to the slice around it, not to the next one.
                    events.append({**arrow, "ph": "s", "tid": sender, "ts": sent, "bp": "e"})
                    events.append({**arrow, "ph": "f", "tid": device, "ts": taken, "bp": "e"})
                    num_arrows += 1
        events += [
            {
                "ph": "C",
                "pid": 0,
                "name": f"live activations, device {device}",
                "ts": time * microseconds,
                "args": {"live": live},
            }
            for time, live in live_steps(simulation, device)
        ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _slice(
    simulation: Simulation, action: Action, thread: dict[str, int], microseconds: float
) -> dict[str, Any]:
    start = simulation.starts[action]
    return {
        "ph": "X",
        **thread,
        "name": str(action),
        "cat": NAMES[Kind(action.kind)],
        "ts": start * microseconds,
        "dur": (simulation.ends[action] - start) * microseconds,
        "args": {
            "stage": action.stage,
            "microbatch": action.microbatch,
            "slice": action.slice,
            "version": action.version,
        },
    }
