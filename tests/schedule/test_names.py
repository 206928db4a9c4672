"""Names and options of schedules."""

import pytest

from jaxpipe.schedule import make_schedule, schedule_names
from tests.schedule.suite import SUITE


def test_every_name_makes_a_schedule_of_that_name():
    made = {name: make_schedule(name, 4, 8).name for name in schedule_names()}
    assert made.pop("zb1p") == "zb_h1"
    assert all(name == of for name, of in made.items())


def test_every_schedule_of_the_library_is_in_the_common_suite():
    assert {row.name for row in SUITE} | {"zb1p"} == set(schedule_names())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("1f1", "there is no schedule '1f1'; did you mean '1f1b'[?] Known: gpipe, 1f1b, eager"),
        ("GPipe", "there is no schedule 'GPipe'; did you mean 'gpipe'[?]"),
        ("xyz", "there is no schedule 'xyz'; Known: gpipe"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(name, 4, 8)


def test_an_unknown_option_is_named():
    with pytest.raises(ValueError, match="'1f1b' has no option 'num_chunks'; it takes none"):
        make_schedule("1f1b", 4, 8, num_chunks=2)
    with pytest.raises(
        ValueError, match=r"no option 'chunks'; did you mean 'num_chunks'[?] it tak"
    ):
        make_schedule("looped_bfs", 4, 8, chunks=2)
