"""Timelines of characters."""

import pytest

from jaxpipe.schedule import Costs, draw_text, from_csv, gpipe, one_f_one_b


def test_time_is_to_scale_and_idle_time_visible():
    assert str(gpipe(2, 3)) == "\n".join(
        [
            "gpipe: 2 devices, 2 stages, 3 microbatches",
            "device 0  F0 F1 F2 .........BW0-- BW1-- BW2--",
            "device 1  ...F0 F1 F2 BW0-- BW1-- BW2-- ......",
            "makespan 12, bubble 25.0 % (lower bound 12), peak live activations 3 3",
        ]
    )


def test_one_of_each_is_singular():
    assert str(gpipe(1, 1)).startswith("gpipe: 1 device, 1 stage, 1 microbatch\n")


def test_costs_widen_the_actions():
    costs = Costs(forward=1.0, backward_input=2.0, backward_weight=1.0, hop=1.0)
    assert draw_text(gpipe(2, 1), costs).splitlines()[1:3] == [
        "device 0  F0 ..................BW0-----",
        "device 1  ......F0 BW0----- ............",
    ]


def test_stages_are_named_where_a_device_has_several():
    text = "0F0,2F0,2BW0,0BW0\n1F0,3F0,3BW0,1BW0\n"
    assert (
        str(from_csv(text)).splitlines()[1].startswith("device 0  0F0 ....2F0 ............2BW0--- ")
    )


def test_actions_issued_together_share_a_block():
    schedule = from_csv("0F0,(0BW0;0F1)OVERLAP,0BW1\n")
    assert str(schedule).splitlines()[1] == "device 0  F0 BW0+F1-- BW1--"


def test_slices_are_counted_and_named():
    text = "# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop slices=2\n"
    drawing = str(from_csv(text + "0F0,0F0.1,0BW0.1,0BW0\n"))
    assert drawing.splitlines()[0] == "csv: 1 device, 1 stage, 1 microbatch, 2 slices each"
    assert "F0.1 " in drawing


def test_very_short_actions_lose_their_label_rather_than_stretch_the_rest():
    costs = Costs(forward=1.0, backward_input=1.0, backward_weight=0.001)
    drawing = draw_text(from_csv("0F0,0B0,0W0\n"), costs)
    assert max(map(len, drawing.splitlines())) < 100
    assert "F0" in drawing


@pytest.mark.parametrize("width", [40, 77, 120])
@pytest.mark.parametrize("sizes", [(4, 100), (40, 3), (3, 2)], ids=str)
def test_long_schedules_fit_the_width(width, sizes):
    lines = draw_text(one_f_one_b(*sizes), width=width).splitlines()
    timelines = lines[1:-1]
    assert max(map(len, timelines)) <= width
    assert len(lines) <= 19
    assert any("F0" in line for line in timelines)


def test_left_out_time_and_devices_are_marked():
    drawing = str(one_f_one_b(40, 20))
    assert "~~" in drawing
    assert "...        24 more devices" in drawing
    assert "peak live activations 20 at most" in drawing


def test_a_width_without_room_is_refused():
    with pytest.raises(ValueError, match="width=20 leaves no room for a timeline; use width=40"):
        draw_text(gpipe(2, 2), width=20)
