"""JSON both ways."""

import json

import pytest

from jaxpipe.schedule import ScheduleError, from_json, make_schedule, schedule_names, to_json


@pytest.mark.parametrize("name", schedule_names())
def test_dump_then_load_is_the_identity(name):
    schedule = make_schedule(name, 4, 8)
    assert from_json(to_json(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0BW0", "not JSON: .*; write it with to_json, or read a CSV with from_csv"),
        ("[1, 2]", "is not a schedule of format 'jaxpipe-schedule' and version 1, but has None"),
        ('{"format": "x", "version": 1}', r"but has \('x', 1\); write it with to_json"),
        ('{"format": "jaxpipe-schedule", "version": 1}', "the JSON lacks the field 'placement'"),
    ],
    ids=["csv", "list", "format", "field"],
)
def test_another_text_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        from_json(text)


def test_an_action_that_cannot_be_read_is_named():
    data = json.loads(to_json(make_schedule("gpipe", 2, 2)))
    data["rows"][1][2] = ["1X0"]
    with pytest.raises(ScheduleError, match="device 1, column 2: '1X0' is not an action; write"):
        from_json(json.dumps(data))


def test_a_broken_schedule_is_refused():
    data = json.loads(to_json(make_schedule("gpipe", 2, 2)))
    del data["rows"][1][2]
    with pytest.raises(ScheduleError, match="1BW0 .* is missing"):
        from_json(json.dumps(data))
