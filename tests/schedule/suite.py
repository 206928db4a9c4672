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
        allows: Whether the mathematics allows these devices, microbatches and options.
    """

    name: str
    max_devices: int = 16
    options: tuple[tuple[str, int, int], ...] = ()
    allows: Callable[..., bool] = lambda num_devices, num_microbatches, **options: True


SUITE = (
    Row(name="gpipe"),
    Row(name="1f1b"),
)


@st.composite
def schedules(draw: st.DrawFn, row: Row) -> Schedule:
    """The schedule of a row at sizes P from 1 to 16 and M from 1 to 4 P, with random options."""
    num_devices = draw(st.integers(1, row.max_devices), label="num_devices")
    num_microbatches = draw(st.integers(1, 4 * num_devices), label="num_microbatches")
    options = {
        name: draw(st.integers(lowest, highest), label=name)
        for name, lowest, highest in row.options
    }
    if not row.allows(num_devices, num_microbatches, **options):
        # Every restriction is one on microbatches, and all have this in common.
        num_microbatches = 4 * num_devices
    return make_schedule(row.name, num_devices, num_microbatches, **options)
