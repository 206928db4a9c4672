"""Token slices in configs: named, chosen, measured, trained with and compiled."""

import json
import re
from typing import Any

import jax
import numpy as np
import pytest

from jaxpipe.plan import plan_slices
from models import flops_of_slice
from models.config import GPTConfig
from tests.runtime.gpu_topology import h100_devices
from tests.train.settings import tiny_config, write_config
from train.build import build_pipeline, initial_params
from train.config import parse_arguments
from train.slice import main, points
from train.slicing import MOST_SLICES, best_slices, choose_slices, estimated_cost, slice_problem
from train.user_error import UserError


@pytest.mark.parametrize(
    ("slices", "expected"), [(None, None), (4, 4), ([7, 5, 4], (7, 5, 4)), (1, 1)]
)
def test_slices_that_are_named(tmp_path, slices, expected):
    config = tiny_config(tmp_path, pipeline={"schedule": "seq1f1b", "slices": slices})
    assert config.pipeline.slices == expected
    assert choose_slices(config) == expected


def test_slices_on_the_command_line(tmp_path):
    path = str(write_config(tmp_path))
    for words, expected in (
        (["4"], 4),
        (["auto"], "auto"),
        (["9", "7"], (9, 7)),
        (["None"], None),
    ):
        parsed = parse_arguments("train.slice", [path, "--pipeline.slices", *words])
        assert parsed.config.pipeline.slices == expected


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (0, "pipeline: slices=0 must be 1 or more slices, of 1 or more tokens each, or 'auto'"),
        ([], "must be 1 or more slices"),
        ([16, 0], "must be 1 or more slices"),
        ([8, 7], "pipeline.slices=[8, 7] sum to 15 tokens, but data.sequence_length=16"),
        (17, "pipeline.slices=17 are more than the data.sequence_length=16 tokens"),
        ("many", "pipeline.slices"),
        (2.5, "pipeline.slices"),
    ],
)
def test_what_is_no_slicing(tmp_path, slices, message):
    with pytest.raises(UserError, match=re.escape(message)):
        tiny_config(tmp_path, pipeline={"slices": slices})


def test_auto_cuts_long_sequences_into_slices_of_about_equal_work(tmp_path):
    config = tiny_config(
        tmp_path,
        model={"max_sequence_length": 4096, "width": 64},
        data={"sequence_length": 4096},
        pipeline={"schedule": "seq1f1b", "slices": "auto"},
    )
    lengths = choose_slices(config)
    assert isinstance(lengths, tuple)
    assert sum(lengths) == 4096
    assert 4 <= len(lengths) <= MOST_SLICES
    assert lengths[0] > lengths[-1]  # later tokens attend to more
    assert all(length % 128 == 0 for length in lengths)
    assert choose_slices(config) == lengths


def test_auto_leaves_short_sequences_whole(tmp_path):
    config = tiny_config(tmp_path, pipeline={"schedule": "seq1f1b", "slices": "auto"})
    assert choose_slices(config) == (16,)


def test_the_best_slices_are_not_more_than_can_be_compiled(tmp_path):
    config = tiny_config(
        tmp_path, model={"max_sequence_length": 8192}, data={"sequence_length": 8192}
    )
    problem = slice_problem(config, estimated_cost(config.model))
    plan = best_slices(problem)
    assert len(plan.lengths) <= MOST_SLICES
    free = plan_slices(problem)
    if len(free.lengths) <= MOST_SLICES:
        assert plan.time == free.time
    assert len(set(best_slices(problem, 2).lengths)) <= 2


def test_flops_of_slices_add_up_to_those_of_windows_and_recurrences():
    sizes: dict[str, Any] = {
        "vocab_size": 8,
        "max_sequence_length": 64,
        "num_layers": 1,
        "width": 8,
        "num_heads": 2,
    }
    lengths, contexts = np.array([16, 16]), np.array([0, 16])
    changes: list[dict[str, Any]] = [{}, {"attention_window": 5}, {"mixer": "recurrence"}]
    attention, window, recurrence = (
        flops_of_slice(GPTConfig(**(sizes | change)), lengths, contexts) for change in changes
    )
    assert attention[1] - attention[0] == 4 * 8 * 16 * 16
    assert window[1] - window[0] == 4 * 8 * 16 * 4
    assert recurrence[1] == recurrence[0]


@pytest.mark.parametrize("mixer", ["attention", "recurrence"])
def test_a_sliced_run_has_the_gradients_of_a_whole_one(tmp_path, mixer):
    losses = []
    for settings in (
        {"schedule": "1f1b"},
        {"schedule": "seq1f1b", "slices": [7, 5, 4]},
        {"schedule": "interleaved_1f1b", "num_chunks": 1, "slices": 2},
    ):
        config = tiny_config(tmp_path, model={"mixer": mixer}, pipeline=settings)
        pipeline = build_pipeline(config)
        tokens = np.random.default_rng(0).integers(0, 256, (4, 17)).astype("int32")
        weights = np.ones((4, 16), "float32")
        batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}
        params = initial_params(pipeline, config)
        (loss, _), _ = pipeline.value_and_grad(params, batch, jax.random.key(0))
        losses.append(float(loss))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_what_is_measured_covers_the_sequence():
    assert points(128) == [
        (16, 0), (16, 32), (16, 64), (32, 0), (32, 64), (64, 0), (64, 32), (64, 64), (128, 0)
    ]  # fmt: skip
    assert all(tokens + context <= 5 for tokens, context in points(5))


def test_slices_are_measured_and_planned(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("train.slice.points", lambda length: [(4, 0), (8, 0), (8, 8)])
    path = str(write_config(tmp_path))
    assert main([path, "--json", "--grid", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["lengths"]) == 16
    assert all(length % 4 == 0 for length in found["lengths"])
    assert [(row["l"], row["ctx"]) for row in found["measured"]] == [(4, 0), (8, 0), (8, 8)]
    assert found["time"] <= min(each["time"] for each in found["equal"])
    monkeypatch.setattr("train.slice.measure", lambda config, tokens, context: tokens / 1000)
    assert main([path, "--max_lengths", "1"]) == 0
    captured = capsys.readouterr()
    assert "4 tokens behind 0: 4 ms" in captured.err
    assert "planned" in captured.out
    assert "slices: [" in captured.out


def test_mistakes_get_a_line(tmp_path, capsys):
    path = str(write_config(tmp_path))
    assert main([path, "--grid", "0"]) == 2
    assert "grid" in capsys.readouterr().err
    assert main(["nowhere.yaml"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")
def test_32k_tokens_fit_on_eight_gpus(capsys):
    from train.aot import main as compile_for

    h100_devices(1)
    command = ["configs/gpt_long_context.yaml", "--topology", "h100:1x1x8", "--json"]
    assert compile_for(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    assert 0.9 <= found["bytes"]["temporaries"] / found["bytes"]["predicted_temporaries"] <= 1.1
