"""The pictures in the docstrings of generators are what the library draws."""

import importlib
import re

import pytest

from jaxpipe.schedule import make_schedule

PICTURES = {
    "gpipe": ("gpipe", (2, 3)),
    "one_f_one_b": ("1f1b", (2, 3)),
    "eager_one_f_one_b": ("eager_1f1b", (2, 4)),
    "interleaved": ("interleaved_1f1b", (2, 2)),
    "zero_bubble": ("zb_h1", (2, 3)),
}


@pytest.mark.parametrize("module", PICTURES)
def test_pictures_are_true(module):
    name, sizes = PICTURES[module]
    docstring = importlib.import_module(f"jaxpipe.schedule.{module}").__doc__ or ""
    shown = re.findall(r"^    (device \d+  .*)$", docstring, re.M)
    drawn = str(make_schedule(name, *sizes)).splitlines()[1:-1]
    assert shown == drawn
