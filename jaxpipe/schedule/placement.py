"""Which device holds which stage.

A placement is one or two *paths*: a path lists the device of every stage in model order. Most
schedules have one path, which every microbatch takes:

    loop, 4 devices, 8 stages    0 1 2 3 0 1 2 3
    v,    4 devices, 8 stages    0 1 2 3 3 2 1 0

A bidirectional schedule (Chimera, DualPipe) has two, so that every stage lies on two devices; the
first half of the microbatches takes the first path and the second half the other:

    bidirectional, 4 devices     0 1 2 3  and  3 2 1 0
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """The devices of the stages, and the path each microbatch takes through them.

    Attributes:
        name: The name in files and errors, such as `"loop"`.
        paths: For each path, the device of each stage in model order.
        path_starts: The first microbatch of each path: ascending, and the first is 0.
    """

    name: str
    paths: tuple[tuple[int, ...], ...]
    path_starts: tuple[int, ...] = (0,)

    @property
    def num_stages(self) -> int:
        return len(self.paths[0])

    def path_of(self, microbatch: int) -> int:
        """Index of the path that `microbatch` takes."""
        return sum(start <= microbatch for start in self.path_starts) - 1

    def device(self, stage: int, microbatch: int = 0) -> int:
        """The device that holds `stage` for `microbatch`."""
        return self.paths[self.path_of(microbatch)][stage]

    def stages_of(self, device: int, path: int = 0) -> tuple[int, ...]:
        """The stages of `path` on `device`, in model order: a stage's index here is its chunk."""
        return tuple(stage for stage, owner in enumerate(self.paths[path]) if owner == device)


def loop_placement(num_devices: int, num_chunks: int = 1) -> Placement:
    """Stages dealt round and round the devices: stage `s` lies on device `s % num_devices`."""
    return Placement(name="loop", paths=(tuple(range(num_devices)) * num_chunks,))
