"""The names users type, and the schedules they stand for."""

import difflib
import inspect
from collections.abc import Callable

from jaxpipe.schedule.chimera import bitpipe, chimera
from jaxpipe.schedule.dualpipe import dualpipe, dualpipe_v
from jaxpipe.schedule.eager_one_f_one_b import eager_one_f_one_b
from jaxpipe.schedule.forward_only import forward_only
from jaxpipe.schedule.gpipe import gpipe
from jaxpipe.schedule.group_interleaved import group_interleaved
from jaxpipe.schedule.hanayo import hanayo
from jaxpipe.schedule.interleaved import interleaved_one_f_one_b
from jaxpipe.schedule.interleaved_zero_bubble import interleaved_zero_bubble
from jaxpipe.schedule.looped_bfs import looped_bfs
from jaxpipe.schedule.one_f_one_b import one_f_one_b
from jaxpipe.schedule.pipedream import pipedream, pipedream_2bw
from jaxpipe.schedule.schedule import Schedule
from jaxpipe.schedule.seq1f1b import seq1f1b
from jaxpipe.schedule.terapipe import terapipe
from jaxpipe.schedule.v_shaped import one_f_one_b_v, v_half, v_min
from jaxpipe.schedule.zbv import zbv
from jaxpipe.schedule.zero_bubble import zb1p5, zb2p, zb_h1, zb_h2

GENERATORS: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager_1f1b": eager_one_f_one_b,
    "interleaved_1f1b": interleaved_one_f_one_b,
    "looped_bfs": looped_bfs,
    "group_interleaved": group_interleaved,
    "zb_h1": zb_h1,
    "zb1p": zb_h1,
    "zb_h2": zb_h2,
    "zb2p": zb2p,
    "zb1p5": zb1p5,
    "interleaved_zb": interleaved_zero_bubble,
    "zbv": zbv,
    "v_half": v_half,
    "v_min": v_min,
    "1f1b_v": one_f_one_b_v,
    "hanayo": hanayo,
    "seq1f1b": seq1f1b,
    "terapipe": terapipe,
    "chimera": chimera,
    "dualpipe": dualpipe,
    "dualpipe_v": dualpipe_v,
    "bitpipe": bitpipe,
    "pipedream": pipedream,
    "pipedream_2bw": pipedream_2bw,
    "forward_only": forward_only,
}
"""From every name to its generator. `zb1p` is another name of `zb_h1`."""


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
