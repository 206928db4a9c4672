"""The names users type, and the schedules they stand for."""

import difflib
import inspect
from collections.abc import Callable

from jaxpipe.schedule.gpipe import gpipe
from jaxpipe.schedule.one_f_one_b import one_f_one_b
from jaxpipe.schedule.schedule import Schedule

GENERATORS: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
}
"""From every name to its generator."""


def schedule_names() -> tuple[str, ...]:
    """All names that `make_schedule` takes."""
    return tuple(GENERATORS)


def make_schedule(
    name: str, num_devices: int, num_microbatches: int, **options: object
) -> Schedule:
    """The schedule of a name.

    Args:
        name: One of `schedule_names()`.
        num_devices: Devices in the pipeline.
        num_microbatches: Microbatches of one step.
        **options: What the generator of that name takes besides, such as `num_chunks`.

    Raises:
        TypeError: If a size is not an integer.
        ValueError: If the name or an option is unknown, or the sizes do not suit the schedule.

    Example:
        >>> make_schedule("1f1b", 4, 8).num_stages
        4
        >>> make_schedule("1f1", 4, 8)
        Traceback (most recent call last):
        ValueError: there is no schedule '1f1'; did you mean '1f1b'? Known: ...
    """
    if name not in GENERATORS:
        near = difflib.get_close_matches(str(name).lower(), GENERATORS, n=1, cutoff=0.4)
        meant = f"; did you mean {near[0]!r}? " if near else "; "
        raise ValueError(f"there is no schedule {name!r}{meant}Known: {', '.join(GENERATORS)}")
    generator = GENERATORS[name]
    known = schedule_options(name)
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1, cutoff=0.4)
            meant = f"; did you mean {near[0]!r}? " if near else "; "
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"schedule {name!r} has no option {option!r}{meant}{takes}")
    return generator(num_devices, num_microbatches, **options)


def schedule_options(name: str) -> tuple[str, ...]:
    """The options that `make_schedule` takes for a name, besides the two sizes."""
    return tuple(inspect.signature(GENERATORS[name]).parameters)[2:]
