"""SVG and PNG."""

import sys
import xml.etree.ElementTree

import pytest

from jaxpipe.draw import to_png, to_svg
from jaxpipe.schedule import Costs, from_csv, insert_recompute, make_schedule, simulate

pytest.importorskip("matplotlib")


def texts(svg: str) -> list[str]:
    root = xml.etree.ElementTree.fromstring(svg)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_labels_do_not_run_into_each_other():
    """Room was measured on the whole figure and for narrow letters: W labels ran together."""
    simulation = simulate(make_schedule("zbv", 4, 8))
    weights = {f"{stage}W{m}" for stage in range(8) for m in range(8)}
    inch_an_action = 1 / (0.775 * 0.5)  # inches of figure for one inch of time 0.5
    narrow = 25.5 * inch_an_action * 15 / 72
    wide = 25.5 * inch_an_action * 18 / 72
    assert not weights & set(texts(to_svg(simulation, width=narrow)))
    assert weights <= set(texts(to_svg(simulation, width=wide)))


@pytest.mark.parametrize("name", ["gpipe", "dualpipe", "v_half", "seq1f1b", "pipedream"])
def test_every_action_is_labelled(name):
    simulation = simulate(make_schedule(name, 4, 8))
    shown = set(texts(to_svg(simulation, width=40.0)))
    missing = {str(action) for action in simulation.schedule.positions} - shown
    # An update takes no time, so there is no room for its label.
    assert all("U" in label for label in missing)


def test_legend_title_devices_and_peaks_are_shown():
    shown = texts(to_svg(simulate(insert_recompute(make_schedule("zb_h1", 4, 8)))))
    for expected in (
        "F forward",
        "B input gradient",
        "W weight gradient",
        "R recompute",
        "idle",
        "activations kept, and their peak",
        "device 3",
    ):
        assert expected in shown
    assert "BW both gradients" not in shown
    assert any("makespan" in text and "bubble" in text for text in shown)


def test_the_same_simulation_gives_the_same_bytes():
    simulation = simulate(make_schedule("1f1b", 2, 3))
    assert to_svg(simulation) == to_svg(simulation)
    assert to_png(simulation) == to_png(simulation)
    assert to_png(simulation).startswith(b"\x89PNG")


def test_widths_are_true_to_cost():
    wide = to_svg(simulate(make_schedule("gpipe", 2, 2), Costs(forward=5.0)), width=10.0)
    assert wide != to_svg(simulate(make_schedule("gpipe", 2, 2)), width=10.0)


def test_a_schedule_without_duration_can_be_drawn():
    free = Costs(forward=0.0, backward_input=0.0, backward_weight=0.0)
    assert "device 0" in texts(to_svg(simulate(make_schedule("gpipe", 1, 1), free)))
    idle = from_csv("# jaxpipe-schedule 1 devices=2 microbatches=1 placement=0\n0F0,0BW0\n")
    assert "device 1" in texts(to_svg(simulate(idle)))


def test_a_width_of_nothing_is_refused():
    with pytest.raises(ValueError, match="width=0.0 inches is no picture; use width=10, say"):
        to_svg(simulate(make_schedule("gpipe", 1, 1)), width=0.0)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"not installed; pip install 'jaxpipe\[viz\]', or draw"):
        to_svg(simulate(make_schedule("gpipe", 1, 1)))
