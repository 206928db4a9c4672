"""Whatever a file holds, reading it ends in a schedule or in an error that says what is wrong."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.schedule import (
    from_csv,
    from_json,
    from_torch_csv,
    make_schedule,
    to_csv,
    to_json,
    to_torch_csv,
    validate,
)

SMALL = [make_schedule(name, 2, 4) for name in ("1f1b", "zbv", "dualpipe", "seq1f1b", "pipedream")]

PIECES = ["", ",", "\n", "0", "99", "F", "BW", "B", "W", "U", ".", "@", ";", "-1", "²", "x"]
VALUES = [None, 0, 10**9, -1, "x", [], [[]], {}, [["x"]], True]


@st.composite
def damaged(draw: st.DrawFn, texts: list[str]) -> str:
    """A text with a few characters replaced, removed, doubled or swapped."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(text) - 1)))
        piece = draw(
            st.sampled_from(
                [
                    "",
                    ",",
                    "\n",
                    "0",
                    "9",
                    "99",
                    "F",
                    "BW",
                    "B",
                    "W",
                    "U",
                    ".",
                    "@",
                    ";",
                    "-1",
                    "²",
                    "x",
                ]
            )
        )
        text = text[:at] + piece + text[at + draw(st.integers(0, 2)) :]
    return text


@settings(max_examples=150, deadline=None)
@given(text=damaged([to_csv(schedule) for schedule in SMALL]))
def test_csv(text):
    with contextlib.suppress(ValueError):
        validate(from_csv(text))


@settings(max_examples=60, deadline=None)
@given(text=damaged([to_torch_csv(schedule) for schedule in SMALL[:2]]))
def test_torch_csv(text):
    for placement in (None, "v"):
        with contextlib.suppress(ValueError):
            validate(from_torch_csv(text, placement=placement))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_json(data):
    value = json.loads(to_json(data.draw(st.sampled_from(SMALL[:2]))))
    field = data.draw(st.sampled_from(sorted(value)))
    value[field] = data.draw(st.sampled_from(VALUES))
    with contextlib.suppress(ValueError):
        validate(from_json(json.dumps(value)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,999999999F0\n", "names stage 999999999, but has 2 actions in all, fewer than stages"),
        (
            "# jaxpipe-schedule 1 devices=1 microbatches=999999999 placement=loop\n0F0,0BW0\n",
            "need 999999999 forwards, but there are 2 actions in all; check the sizes",
        ),
        (
            "# jaxpipe-schedule 1 devices=0 microbatches=1 placement=loop\n0F0,0BW0\n",
            "devices=0 is not a number above 0; write devices=4, say",
        ),
    ],
    ids=["stages", "microbatches", "devices"],
)
def test_a_slip_of_the_finger_fills_no_memory(text, message):
    with pytest.raises(ValueError, match=message):
        from_csv(text)
