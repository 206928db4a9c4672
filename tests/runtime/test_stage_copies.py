"""Stages that lie on two devices."""

import re

import pytest

from jaxpipe.runtime import FunctionalPipeline, make_mesh
from jaxpipe.runtime.stage_copies import copy_pairs
from jaxpipe.schedule import bidirectional_placement, make_schedule, v_placement
from jaxpipe.schedule.placement import Placement
from tests.runtime.toy import toy_batch, toy_model, toy_params


def test_a_single_path_needs_no_copies():
    assert copy_pairs(v_placement(4)) == ()


def test_a_mirrored_path_copies_all_chunks_of_a_device_at_once():
    assert copy_pairs(bidirectional_placement(2, 4, 2)) == (((0, 1), (1, 0)),)


def test_a_path_that_takes_a_device_apart():
    placement = Placement(name="custom", paths=((0, 1, 1, 0), (0, 1, 0, 1)), path_starts=(0, 1))
    message = (
        "the stages of a device must lie together on one device along every path, since their "
        "weights are copied together; found the paths (0, 1, 1, 0) and (0, 1, 0, 1). A mirrored "
        "path would do: (1, 0, 0, 1)"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        copy_pairs(placement)


def test_parameters_and_gradients_exist_once():
    pipeline = FunctionalPipeline(
        toy_model(8), mesh=make_mesh(4), num_microbatches=8, schedule=make_schedule("chimera", 4, 8)
    )
    params = pipeline.to_pipeline(toy_params(8, "float32"))
    assert params.blocks["up"].shape[:3] == (4, 1, 2)
    plan = pipeline.plan(params, toy_batch(16, "float32"))
    assert plan.memory.weight_copies == 2 * (plan.memory.parameters - 4 * (7 * 4 + 4 + 2))
