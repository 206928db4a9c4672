"""Colours that stay apart in grey and for colour-blind people."""

import itertools

import pytest

from jaxpipe.draw.colors import COLORS, HATCHES, NAMES, luminance
from jaxpipe.schedule import Kind

# What is left of red, green and blue for people who lack one kind of cone, in linear light
# (Viénot, Brettel, Mollon 1999).
PROTANOPIA = ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0))
DEUTERANOPIA = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))

COMMON = [Kind.F, Kind.B, Kind.W, Kind.BW]


def seen(color: str, matrix: tuple[tuple[float, ...], ...]) -> list[float]:
    linear = [(int(color[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    mixed = (sum(w * part for w, part in zip(row, linear, strict=True)) for row in matrix)
    return [min(1.0, max(0.0, part)) ** (1 / 2.2) for part in mixed]


def test_every_kind_has_a_colour_and_a_name():
    assert set(COLORS) == set(NAMES) == set(Kind)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(COMMON, 2)))
def test_common_kinds_differ_in_grey(one, other):
    assert abs(luminance(COLORS[one]) - luminance(COLORS[other])) > 0.06


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(Kind, 2)))
@pytest.mark.parametrize("matrix", [PROTANOPIA, DEUTERANOPIA], ids=["protan", "deutan"])
def test_all_kinds_differ_for_colour_blind_people(one, other, matrix):
    difference = sum(
        abs(a - b)
        for a, b in zip(seen(COLORS[one], matrix), seen(COLORS[other], matrix), strict=True)
    )
    assert difference > 0.15 or HATCHES.get(one) != HATCHES.get(other)
