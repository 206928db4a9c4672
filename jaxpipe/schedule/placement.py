"""Which device holds which stage.

A placement is one or two *paths*: a path lists the device of every stage in model order. Most
schedules have one path, which every microbatch takes:

    loop, 4 devices, 8 stages    0 1 2 3 0 1 2 3
    v,    4 devices, 8 stages    0 1 2 3 3 2 1 0

A bidirectional schedule (Chimera, DualPipe) has two, so that every stage lies on two devices; the
first half of the microbatches takes the first path and the second half the other:

    bidirectional, 4 devices, 4 stages    0 1 2 3          and  3 2 1 0
    bidirectional, 4 devices, 8 stages    0 1 2 3 3 2 1 0  and  3 2 1 0 0 1 2 3
"""

import dataclasses
import functools


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
        """Stages of the model."""
        return len(self.paths[0])

    def path_of(self, microbatch: int) -> int:
        """Index of the path that `microbatch` takes."""
        return sum(start <= microbatch for start in self.path_starts) - 1

    def device(self, stage: int, microbatch: int = 0) -> int:
        """The device that holds `stage` for `microbatch`."""
        return self.paths[self.path_of(microbatch)][stage]

    def stages_of(self, device: int, path: int = 0) -> tuple[int, ...]:
        """The stages of `path` on `device`, in model order."""
        return tuple(stage for stage, owner in enumerate(self.paths[path]) if owner == device)

    @functools.cached_property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """For each path, which chunk of its device every stage is.

        A device counts the chunks of all paths through, so that the stages of the second path come
        after those of the first.

        Example:
            >>> v_placement(2).chunks
            ((0, 0, 1, 1),)
            >>> bidirectional_placement(2, 4).chunks
            ((0, 0), (1, 1))
        """
        room = self.num_chunks // len(self.paths)
        numbered = []
        for number, path in enumerate(self.paths):
            seen = [number * room] * (max(path) + 1)
            chunks = []
            for device in path:
                chunks.append(seen[device])
                seen[device] += 1
            numbered.append(tuple(chunks))
        return tuple(numbered)

    @property
    def num_chunks(self) -> int:
        """Chunks that a device has room for, over all paths."""
        return len(self.paths) * max(path.count(device) for path in self.paths for device in path)

    def chunk(self, stage: int, microbatch: int = 0) -> int:
        """Which chunk of its device `stage` is for `microbatch`."""
        return self.chunks[self.path_of(microbatch)][stage]


def loop_placement(num_devices: int, num_chunks: int = 1) -> Placement:
    """Stages dealt round and round the devices: stage `s` lies on device `s % num_devices`."""
    return Placement(name="loop", paths=(tuple(range(num_devices)) * num_chunks,))


def v_placement(num_devices: int, num_chunks: int = 2) -> Placement:
    """Stages laid forth and back over the devices: one V for two chunks, a wave for more.

    Consecutive chunks meet on the same device, so that nothing is sent at the turns.

    Example:
        >>> v_placement(3).paths
        ((0, 1, 2, 2, 1, 0),)
    """
    forth = tuple(range(num_devices))
    path = sum((forth if chunk % 2 == 0 else forth[::-1] for chunk in range(num_chunks)), ())
    return Placement(name="v", paths=(path,))


def bidirectional_placement(
    num_devices: int, num_microbatches: int, num_chunks: int = 1
) -> Placement:
    """Two mirrored `v_placement` paths; the second half of the microbatches takes the second.

    Every stage lies on two devices, so the devices hold twice the weights. Of an odd number of
    microbatches the first path takes one more.

    Example:
        >>> bidirectional_placement(4, 8)
        Placement(name='bidirectional', paths=((0, 1, 2, 3), (3, 2, 1, 0)), path_starts=(0, 4))
    """
    (path,) = v_placement(num_devices, num_chunks).paths
    mirrored = tuple(num_devices - 1 - device for device in path)
    return Placement(
        name="bidirectional",
        paths=(path, mirrored),
        path_starts=(0, -(-num_microbatches // 2)),
    )


PLACEMENT_NAMES = ("loop", "v", "bidirectional")


def named_placement(
    name: str, *, num_devices: int, num_stages: int, num_microbatches: int
) -> Placement:
    """The placement that a file or a user names.

    Raises:
        ValueError: If there is no such name, or the stages cannot be laid out like that.

    Example:
        >>> named_placement("v", num_devices=2, num_stages=4, num_microbatches=8).paths
        ((0, 1, 1, 0),)
    """
    if name not in PLACEMENT_NAMES:
        raise ValueError(f"placement={name!r} is unknown; use one of {', '.join(PLACEMENT_NAMES)}")
    num_chunks, rest = divmod(num_stages, num_devices)
    if rest or num_chunks == 0:
        raise ValueError(
            f"placement={name!r} gives every device equally many stages, but {num_stages} stages "
            f"lie on {num_devices} devices; use {max(1, num_chunks) * num_devices} stages or list "
            "the devices of the stages"
        )
    match name:
        case "loop":
            return loop_placement(num_devices, num_chunks)
        case "v":
            return v_placement(num_devices, num_chunks)
        case _:
            return bidirectional_placement(num_devices, num_microbatches, num_chunks)
