"""What an action waits for."""

import dataclasses

import pytest

from jaxpipe.schedule import Schedule, dependencies, from_csv, gpipe

SLICED = from_csv("""\
# jaxpipe-schedule 1 devices=2 microbatches=1 placement=loop slices=2
0F0,0F0.1,0R0.1,0B0.1,0W0.1,0BW0
1F0,1F0.1,1BW0.1,1BW0
""")
VERSIONS = from_csv("""\
# jaxpipe-schedule 1 devices=1 microbatches=3 placement=loop
0F0,0BW0,0F1,0B1,0W1,0U@1,0F2@1,0BW2@1,0U@2
""")
HEADS = from_csv("""\
# jaxpipe-schedule 1 devices=2 microbatches=1 placement=loop
0F0,0H0,0BW0
1F0,1H0,1BW0
""")
TWO_PASSES = from_csv("""\
# jaxpipe-schedule 1 devices=2 microbatches=1 placement=loop
0F0,0S0,0H0,0BW0
1F0,1S0,1H0,1BW0
""")


def awaited(schedule: Schedule, text: str) -> list[str]:
    actions = {str(action): action for action in schedule.positions}
    return [str(action) for action in dependencies(schedule, actions[text])]


@pytest.mark.parametrize(
    ("schedule", "action", "expected"),
    [
        (SLICED, "0F0", []),
        (SLICED, "1F0", ["0F0"]),
        (SLICED, "1F0.1", ["0F0.1", "1F0"]),
        (SLICED, "1BW0.1", ["1F0.1"]),
        (SLICED, "1BW0", ["1F0", "1BW0.1"]),
        (SLICED, "0R0.1", ["0F0.1"]),
        (SLICED, "0B0.1", ["0R0.1", "1BW0.1"]),
        (SLICED, "0W0.1", ["0B0.1"]),
        (SLICED, "0BW0", ["0F0", "1BW0", "0B0.1"]),
        (VERSIONS, "0U@1", ["0W1", "0BW0"]),
        (VERSIONS, "0F2@1", ["0U@1"]),
        (VERSIONS, "0BW2@1", ["0F2@1", "0U@1"]),
        (VERSIONS, "0U@2", ["0BW2@1", "0U@1"]),
        (HEADS, "1H0", ["1F0"]),
        (HEADS, "0H0", ["1F0"]),
        (HEADS, "1BW0", ["1F0", "0H0", "1H0"]),
        (HEADS, "0BW0", ["0F0", "1BW0"]),
        (TWO_PASSES, "0S0", ["1F0"]),
        (TWO_PASSES, "0H0", ["0S0", "1S0"]),
        (TWO_PASSES, "1BW0", ["1F0", "0H0", "1H0"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_an_action_waits_for(schedule, action, expected):
    assert awaited(schedule, action) == expected


def test_a_missing_action_is_named():
    good = gpipe(2, 2)
    lacking = dataclasses.replace(good, rows=(good.rows[0][1:], good.rows[1]))
    with pytest.raises(ValueError, match="1F0 waits for 0F0, which the schedule 'gpipe' does not"):
        dependencies(lacking, good.rows[1][0][0])
