"""List scheduling on a V or a wave: a free device takes the most urgent action that is ready.

For placements and sizes for which no rule is known. A forward of chunk `c` of `v` is taken only if
`v - 1 - c` places under the cap stay free, one for each chunk further down its way: so what is
under way can always be finished, and no device gets stuck.
"""

import collections
import heapq

from jaxpipe.schedule.action import Action, Kind
from jaxpipe.schedule.placement import v_placement
from jaxpipe.schedule.schedule import Backward, Schedule


def greedy(
    num_devices: int,
    num_microbatches: int,
    *,
    num_chunks: int,
    activation_cap: int,
    forwards_first: bool,
    name: str,
) -> Schedule:
    """A schedule on `v_placement` with F = 1 and BW = 2.

    Args:
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        num_chunks: Chunks per device.
        activation_cap: The most chunks' activations that a device keeps; at least `num_chunks`.
        forwards_first: Whether a ready forward goes before a ready backward. Among forwards, later
            chunks go first; among backwards, earlier microbatches.
        name: The name of the schedule.
    """
    placement = v_placement(num_devices, num_chunks)
    (path,) = placement.paths
    num_stages = len(path)
    # Microbatches come to a stage in order, so that one queue per stage and kind will do.
    queues: dict[tuple[Kind, int], collections.deque[int]] = {
        (kind, stage): collections.deque()
        for kind in (Kind.F, Kind.BW)
        for stage in range(num_stages)
    }
    queues[Kind.F, 0].extend(range(num_microbatches))
    live = [0] * num_devices
    rows: list[list[Action]] = [[] for _ in range(num_devices)]
    ends: list[tuple[int, int, Action]] = []
    now = 0
    idle = set(range(num_devices))

    def pick(device: int) -> Action | None:
        candidates = []
        for stage in placement.stages_of(device):
            chunk = stage // num_devices
            if queues[Kind.BW, stage]:
                microbatch = queues[Kind.BW, stage][0]
                urgency = (forwards_first, microbatch, -chunk)
                candidates.append((urgency, Kind.BW, stage))
            places_kept = num_chunks - 1 - chunk
            if queues[Kind.F, stage] and live[device] < activation_cap - places_kept:
                candidates.append(((not forwards_first, -chunk, 0), Kind.F, stage))
        if not candidates:
            return None
        _, kind, stage = min(candidates)
        return Action(kind, stage, queues[kind, stage].popleft())

    while True:
        for device in sorted(idle):
            action = pick(device)
            if action is not None:
                idle.remove(device)
                rows[device].append(action)
                live[device] += action.kind is Kind.F
                duration = 1 if action.kind is Kind.F else 2
                heapq.heappush(ends, (now + duration, device, action))
        if not ends:
            break
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, device, (kind, stage, microbatch, *_) = heapq.heappop(ends)
            assert microbatch is not None
            idle.add(device)
            if kind is Kind.BW:
                live[device] -= 1
                if stage > 0:
                    queues[Kind.BW, stage - 1].append(microbatch)
            elif stage + 1 < num_stages:
                queues[Kind.F, stage + 1].append(microbatch)
            else:
                queues[Kind.BW, stage].append(microbatch)
    return Schedule.of_actions(
        rows,
        name=name,
        num_devices=num_devices,
        num_microbatches=num_microbatches,
        placement=placement,
        backward=(Backward.FULL,) * num_stages,
    )
