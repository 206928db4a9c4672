"""CSV both ways."""

import dataclasses

import pytest

from jaxpipe.schedule import (
    Placement,
    ScheduleError,
    bidirectional_placement,
    from_csv,
    gpipe,
    one_f_one_b,
    to_csv,
    v_placement,
)
from tests.schedule.goldens import golden, golden_names, golden_text


def test_header_and_cells_are_written():
    assert to_csv(one_f_one_b(2, 2)) == (
        "# jaxpipe-schedule 1 devices=2 microbatches=2 placement=loop stages=2 name=1f1b\n"
        "0F0,0F1,0BW0,0BW1\n"
        "1F0,1BW0,1F1,1BW1\n"
    )


@pytest.mark.parametrize("name", golden_names())
def test_golden_schedules_survive_a_round_trip(name):
    schedule = golden(name)
    assert from_csv(to_csv(schedule)) == schedule


@pytest.mark.parametrize("name", golden_names("torch"))
def test_cells_are_written_as_in_the_golden_files(name):
    assert to_csv(golden(name)).split("\n", 1)[1] == golden_text(name)


def test_names_with_spaces_survive():
    schedule = dataclasses.replace(gpipe(1, 1), name="my own, 50 %")
    assert from_csv(to_csv(schedule)) == schedule


def test_the_devices_of_stages_may_be_listed():
    text = """\
# jaxpipe-schedule 1 devices=2 microbatches=1 placement=0.0.1
0F0,1F0,1BW0,0BW0
2F0,2BW0
"""
    schedule = from_csv(text)
    assert schedule.placement == Placement(name="custom", paths=((0, 0, 1),))
    assert from_csv(to_csv(schedule)) == schedule


def test_a_renamed_placement_is_written_by_its_devices():
    schedule = dataclasses.replace(
        gpipe(2, 1), placement=Placement(name="loop", paths=((1, 0),)), rows=gpipe(2, 1).rows[::-1]
    )
    assert "placement=1.0@0 " in to_csv(schedule)


def test_spreadsheets_may_pad_and_quote():
    text = to_csv(one_f_one_b(2, 2))
    header, *rows = text.splitlines()
    padded = "\r\n".join([f'"{header}",,,', *(f" {row} ,," for row in rows), ",,,", ""])
    assert from_csv(padded) == one_f_one_b(2, 2)


def test_a_file_without_header_is_a_loop():
    schedule = from_csv("0F0,2F0,2BW0,0BW0\n1F0,3F0,3BW0,1BW0\n", name="mine")
    assert schedule.name == "mine"
    assert schedule.placement.paths == ((0, 1, 0, 1),)


def test_another_placement_without_header_must_be_given():
    text = "0F0,3F0,3BW0,0BW0\n1F0,2F0,2BW0,1BW0\n"
    with pytest.raises(
        ValueError,
        match=r"no header, and device 0, column 1 holds 3F0: stage 3 of a loop over 2 devices lies "
        r"on device 1; give the placement [(]loop, v, bidirectional",
    ):
        from_csv(text)
    assert from_csv(text, placement="v").placement == v_placement(2)
    assert from_csv(text, placement=v_placement(2)).placement == v_placement(2)
    assert from_csv(text, placement="0.1.1.0").placement.paths == v_placement(2).paths


def test_the_second_direction_starts_at_half_the_microbatches():
    text = golden_text("chimera_Chimera_P2_v1_M2")
    assert from_csv(text, placement="bidirectional").placement == bidirectional_placement(2, 2)


@pytest.mark.parametrize(
    "cell",
    ["F0", "0X0", "0F", "0F0.", "0F0x", "x0F0", "0f0", "0F-1", "0F0;0F1", "(0F0)OVERLAP",
     "(0F0;0F1)", "(0F0;zz)OVERLAP", "0U3", "0F0@", "0F0@x", "0B W0"],
)  # fmt: skip
def test_a_cell_that_cannot_be_read_is_named_with_row_and_column(cell):
    with pytest.raises(ScheduleError) as caught:
        from_csv(f"0F0,0F1,0BW0,0BW1\n1F0,{cell},1BW0,1F1,1BW1\n")
    (violation,) = caught.value.violations
    assert (violation.device, violation.column) == (1, 1)
    assert str(violation).startswith(f"device 1, column 1: {cell!r} is not a cell; write <stage>")


def test_all_cells_that_cannot_be_read_are_listed():
    with pytest.raises(ScheduleError) as caught:
        from_csv("0F0,x\ny,1F0\n")
    assert [(v.device, v.column) for v in caught.value.violations] == [(0, 1), (1, 0)]


def test_a_file_that_breaks_rules_is_refused():
    with pytest.raises(ScheduleError, match="device 0, column 0: 0BW0 stands before 0F0"):
        from_csv("0BW0,0F0\n")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("# something", "line 1 is not a header: '# something'; write '# jaxpipe-schedule 1 dev"),
        (
            "# jaxpipe-schedule 2 devices=1 microbatches=1 placement=loop",
            "line 1: the file has format version 2, and this jaxpipe reads 1",
        ),
        (
            "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop color=red",
            "line 1: there is no header field 'color'; use devices, microbatches",
        ),
        (
            "# jaxpipe-schedule 1 devices=one microbatches=1 placement=loop",
            "line 1: devices=one is not a number above 0; write devices=4, say",
        ),
        (
            "# jaxpipe-schedule 1 devices=1 placement=loop",
            "line 1: the header does not state microbatches; add microbatches=",
        ),
        (
            "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop backward=most",
            "line 1: backward=most holds an unknown word .*; use full, input or none",
        ),
        (
            "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=ring",
            "placement='ring' is unknown; use one of loop, v, bidirectional",
        ),
        (
            "# jaxpipe-schedule 1 devices=2 microbatches=1 placement=loop",
            "stages lie on 2 devices",
        ),
    ],
    ids=["other", "version", "field", "number", "missing", "backward", "placement", "stages"],
)
def test_a_header_that_cannot_be_read_is_refused(header, message):
    with pytest.raises(ValueError, match=message):
        from_csv(f"{header}\n0F0,0BW0\n")


@pytest.mark.parametrize("text", ["", "\n\n", ",,\n"], ids=["nothing", "lines", "commas"])
def test_an_empty_file_is_refused(text):
    with pytest.raises(ValueError, match="the schedule file is empty; its first line is"):
        from_csv(text)
