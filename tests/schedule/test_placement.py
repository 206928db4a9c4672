"""Which device holds which stage."""

import pytest

from jaxpipe.schedule import bidirectional_placement, loop_placement, v_placement
from jaxpipe.schedule.placement import named_placement


def test_loop_deals_the_stages_round_and_round():
    placement = loop_placement(3, 2)
    assert placement.paths == ((0, 1, 2, 0, 1, 2),)
    assert placement.num_stages == 6
    assert placement.stages_of(1) == (1, 4)
    assert placement.device(5) == 2


def test_v_turns_on_the_last_device():
    assert v_placement(3).paths == ((0, 1, 2, 2, 1, 0),)
    assert v_placement(2, 4).paths == ((0, 1, 1, 0, 0, 1, 1, 0),)


@pytest.mark.parametrize(("microbatches", "start"), [(8, 4), (5, 3), (1, 1)])
def test_the_second_half_of_the_microbatches_comes_from_the_other_end(microbatches, start):
    placement = bidirectional_placement(4, microbatches)
    assert placement.path_starts == (0, start)
    assert [placement.device(0, microbatch) for microbatch in range(microbatches)] == (
        [0] * start + [3] * (microbatches - start)
    )


@pytest.mark.parametrize("name", ["loop", "v", "bidirectional"])
def test_placements_have_names(name):
    placement = named_placement(name, num_devices=4, num_stages=8, num_microbatches=6)
    assert placement.name == name
    assert placement.num_stages == 8


def test_an_unknown_placement_is_refused():
    with pytest.raises(ValueError, match="placement='w' is unknown; use one of loop, v, bidirec"):
        named_placement("w", num_devices=4, num_stages=8, num_microbatches=6)


def test_stages_that_do_not_share_out_are_refused():
    with pytest.raises(ValueError, match="9 stages lie on 4 devices; use 8 stages or list"):
        named_placement("v", num_devices=4, num_stages=9, num_microbatches=6)
