"""An action as text."""

import pytest

from jaxpipe.schedule import Action, Kind


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Action(Kind.F, 0, 0), "0F0"),
        (Action(Kind.BW, 12, 34), "12BW34"),
        (Action(Kind.R, 2, 5, slice=3), "2R5.3"),
        (Action(Kind.B, 2, 5, version=4), "2B5@4"),
        (Action(Kind.W, 2, 5, slice=1, version=4), "2W5.1@4"),
        (Action(Kind.U, 7, None, version=2), "7U@2"),
        (Action(Kind.H, 1, 6), "1H6"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_text(action, text):
    assert str(action) == text
