"""The schedules that all common tests run on: a new schedule joins by adding a row."""

import dataclasses
from collections.abc import Callable

from hypothesis import strategies as st

from jaxpipe.schedule import Schedule, make_schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One schedule of the suite.

    Attributes:
        name: As users type it.
        max_devices: The most devices to try.
        options: The options to try, and the smallest and largest value of each.
        even_devices: Whether the number of devices must be even.
        allows: Whether the mathematics allows these devices, microbatches and options.
    """

    name: str
    max_devices: int = 16
    options: tuple[tuple[str, int, int], ...] = ()
    even_devices: bool = False
    allows: Callable[..., bool] = lambda num_devices, num_microbatches, **options: True

    @property
    def option_names(self) -> tuple[str, ...]:
        return tuple(name for name, *_ in self.options)


def _two_per_device(num_devices: int, num_microbatches: int, **options: int) -> bool:
    return num_microbatches >= 2 * num_devices


def _dualpipe(num_devices: int, num_microbatches: int, **options: int) -> bool:
    return _two_per_device(num_devices, num_microbatches) and num_microbatches % 2 == 0


CHUNKS = ("num_chunks", 1, 4)
SLICES = ("num_slices", 1, 8)

SUITE = (
    Row(name="gpipe"),
    Row(name="1f1b"),
    Row(name="eager_1f1b"),
    Row(name="interleaved_1f1b", max_devices=8, options=(CHUNKS, ("extra_warmup", 0, 2))),
    Row(name="interleaved_1f1b", max_devices=8, options=(CHUNKS, ("group_size", 8, 12))),
    Row(name="looped_bfs", max_devices=8, options=(CHUNKS,)),
    Row(name="group_interleaved", max_devices=8, options=(CHUNKS,)),
    Row(name="group_interleaved", max_devices=8, options=(CHUNKS, ("staggered", True, True))),
    Row(name="zb_h1"),
    Row(name="zb_h2"),
    Row(name="zb2p"),
    Row(name="zb1p5"),
    Row(name="interleaved_zb", max_devices=8, options=(CHUNKS,)),
    Row(name="zbv", max_devices=12),
    Row(name="v_half", max_devices=8),
    Row(name="v_min", max_devices=8),
    Row(name="1f1b_v", max_devices=8),
    Row(name="hanayo", max_devices=8, options=(("num_waves", 1, 2),)),
    Row(name="seq1f1b", max_devices=8, options=(SLICES,)),
    Row(name="terapipe", max_devices=8, options=(SLICES,)),
    Row(name="chimera"),
    Row(name="dualpipe", even_devices=True, allows=_dualpipe),
    Row(name="dualpipe_v", max_devices=12, allows=_two_per_device),
    Row(name="bitpipe", max_devices=12),
    Row(name="pipedream"),
    Row(name="pipedream_2bw", max_devices=8, options=(("update_every", 8, 12),)),
    Row(name="forward_only", options=(CHUNKS,)),
)


@st.composite
def schedules(draw: st.DrawFn, row: Row) -> Schedule:
    """The schedule of a row at sizes P from 1 to 16 and M from 1 to 4 P, with random options."""
    num_devices = draw(st.integers(1, row.max_devices), label="num_devices")
    num_devices += row.even_devices and num_devices % 2
    num_microbatches = draw(st.integers(1, 4 * num_devices), label="num_microbatches")
    options = {
        name: lowest if lowest is highest else draw(st.integers(lowest, highest), label=name)
        for name, lowest, highest in row.options
    }
    if not row.allows(num_devices, num_microbatches, **options):
        # Every restriction is one on microbatches, and all have this in common.
        num_microbatches = 4 * num_devices
    return make_schedule(row.name, num_devices, num_microbatches, **options)
