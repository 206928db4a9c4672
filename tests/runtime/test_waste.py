"""Warnings about what is legal and wasteful."""

import warnings
from typing import Any

import pytest

from jaxpipe import WastefulWarning
from jaxpipe.runtime import FunctionalPipeline, make_mesh, waste
from tests.runtime.toy import toy_batch, toy_model, toy_params

pytestmark = pytest.mark.filterwarnings("default:wasteful pipeline")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(waste, "_said", set())


def make(num_microbatches: int = 8, **options: Any) -> FunctionalPipeline:
    return FunctionalPipeline(
        toy_model(8), mesh=make_mesh(4), num_microbatches=num_microbatches, **options
    )


def test_a_bubble_of_more_than_half():
    text = (
        "'gpipe' on 4 devices leaves them idle for 75% of the loop with 1 microbatches; with about "
        "4 of them it would be less than half"
    )
    with pytest.warns(WastefulWarning, match=f"wasteful pipeline: {text}") as caught:
        make(1, schedule="gpipe")
    assert [each.filename for each in caught] == [__file__]  # it points to the user's line


def test_stages_of_very_different_length():
    text = r"the largest stage has 5 layers and the mean is 2 \(5, 1, 1, 1\): all devices wait"
    with pytest.warns(WastefulWarning, match=text):
        make(16, schedule="gpipe", layers_per_stage=(5, 1, 1, 1))


def test_microbatches_of_fillers():
    pipeline = make(8, schedule="gpipe")
    params = pipeline.to_pipeline(toy_params(8, "float32"))
    text = "9 examples make 8 microbatches only with 7 fillers of weight 0, which cost as much"
    with pytest.warns(WastefulWarning, match=text):
        pipeline.plan(params, toy_batch(9, "float32"))


def test_sensible_choices_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline = make(8, schedule="gpipe")
        pipeline.plan(pipeline.to_pipeline(toy_params(8, "float32")), toy_batch(16, "float32"))


def test_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            make(1, schedule="gpipe")
    assert [each.category for each in caught] == [WastefulWarning]
