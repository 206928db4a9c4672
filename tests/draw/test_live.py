"""Activations over time."""

import pytest

from jaxpipe.draw import live_steps
from jaxpipe.schedule import Kind, from_csv, make_schedule, peak_live, simulate


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "v_half", "seq1f1b", "forward_only"])
def test_the_peak_is_that_of_the_order(name):
    schedule = make_schedule(name, 4, 8)
    simulation = simulate(schedule)
    for device, peak in enumerate(peak_live(schedule, until=Kind.W)):
        steps = live_steps(simulation, device)
        assert max((live for _, live in steps), default=0) == peak
        assert not steps or steps[-1][1] == 0


def test_a_frozen_stage_keeps_until_b():
    schedule = from_csv("# jaxpipe-schedule 1 devices=1 microbatches=1 placement=loop\n0F0,0B0\n")
    assert live_steps(simulate(schedule), 0) == [(0, 1), (2, 0)]
