"""Reads the files of tests/golden."""

import csv
import functools
import pathlib
import re
from collections.abc import Callable

from jaxpipe.schedule import Schedule, from_csv

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"

_V_SHAPED = ("1F1BV", "ZBV", "V-Half", "V-Min", "DualPipeV")
_BIDIRECTIONAL = ("DualPipe", "Chimera", "BitPipe")


def golden_names(prefix: str = "") -> list[str]:
    """Names of the golden files without their ending."""
    return sorted(
        path.stem
        for path in GOLDEN.glob("*.csv")
        if path.stem.startswith(prefix) and path.stem != "summary"
    )


def sizes_of(name: str) -> tuple[int, int, int]:
    """Devices, chunks and microbatches of a golden file."""
    match = re.search(r"_P(\d+)_v(\d+)_M(\d+)$", name)
    assert match is not None
    devices, chunks, microbatches = map(int, match.groups())
    return devices, chunks, microbatches


def golden_text(name: str) -> str:
    return (GOLDEN / f"{name}.csv").read_text(encoding="utf-8")


@functools.cache
def golden(name: str) -> Schedule:
    """The schedule of a golden file, validated.

    Two systems are brought to our conventions first. jaxpp issues an F and a BW of the last stage
    as one task: we write one after the other. Chimera with M > P repeats the
    order for P microbatches, and numbers the second direction from the middle of every repetition:
    we number it from M / 2.
    """
    text = golden_text(name)
    if name.startswith("jaxpp"):
        text = re.sub(r"\((\w+);(\w+)\)OVERLAP", r"\1,\2", text)
    num_devices, _, num_microbatches = sizes_of(name)
    if "Chimera" in name:
        text = re.sub(r"(?<=[FBW])\d+", _renumber(num_devices, num_microbatches), text)
    parts = name.split("_")
    if any(shape in parts for shape in _V_SHAPED):
        placement = "v"
    elif any(shape in parts for shape in _BIDIRECTIONAL):
        placement = "bidirectional"
    else:
        placement = "loop"
    return from_csv(text, placement=placement, name=name)


def _renumber(num_devices: int, num_microbatches: int) -> Callable[[re.Match[str]], str]:
    half = num_devices // 2

    def renumbered(match: re.Match[str]) -> str:
        repetition, place = divmod(int(match[0]), num_devices)
        second, rest = divmod(place, half)
        return str(second * num_microbatches // 2 + repetition * half + rest)

    return renumbered


@functools.cache
def summary() -> dict[str, dict[str, str]]:
    """The rows of summary.csv by file."""
    with (GOLDEN / "summary.csv").open(encoding="utf-8") as lines:
        return {row["file"].removesuffix(".csv"): row for row in csv.DictReader(lines)}


def assert_same_cells(ours: Schedule, theirs: Schedule) -> None:
    """Fails with the first differing cell of every device."""
    assert (ours.num_devices, ours.num_microbatches, ours.num_slices) == (
        theirs.num_devices,
        theirs.num_microbatches,
        theirs.num_slices,
    )
    differences = []
    for device, (our_row, their_row) in enumerate(zip(ours.rows, theirs.rows, strict=True)):
        for column in range(max(len(our_row), len(their_row))):
            our_cell = our_row[column] if column < len(our_row) else ()
            their_cell = their_row[column] if column < len(their_row) else ()
            if our_cell != their_cell:
                differences.append(
                    f"device {device}, column {column}: ours {'+'.join(map(str, our_cell))}, "
                    f"theirs {'+'.join(map(str, their_cell))}"
                )
                break
    assert differences == []
