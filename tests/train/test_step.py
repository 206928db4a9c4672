"""Whole training runs: the same losses through any pipeline, and without one."""

import jax
import numpy as np
import pytest

from tests.train.settings import tiny_config, write_text
from train.build import build_pipeline, initial_params
from train.corpus import load_corpus
from train.data import TrainingBatches, Windows
from train.optimizer import build_optimizer
from train.step import build_train_step, initial_state


def losses(folder, *, pipe, data=1, schedule="1f1b", steps=20, unpipelined=False, **model):
    """The losses of a run of the tiny GPT, dropout included."""
    config = tiny_config(
        folder,
        model={"num_layers": 5, **model},
        mesh={"pipe": pipe, "data": data},
        pipeline={"schedule": schedule},
        training={"steps": steps},
    )
    corpus = load_corpus([str(write_text(folder))], held_out_percent=5)
    batches = TrainingBatches(
        Windows(corpus.training, 16, origin="training text"), batch_size=4, seed=0
    )
    pipeline = build_pipeline(config)
    if unpipelined:
        pipeline.value_and_grad = pipeline.plain_value_and_grad
    optimizer = build_optimizer(config.optimizer, steps)
    state = initial_state(initial_params(pipeline, config), optimizer)
    train_step = build_train_step(pipeline, optimizer, state, seed=config.seed)
    found = []
    for step in range(steps):
        state, result = train_step(state, next(batches), step)
        found.append(float(result.loss))
    assert train_step._cache_size() == 1, "a step after the first was compiled again"
    return np.array(found)


@pytest.mark.slow
def test_twenty_steps_lose_the_same_through_every_pipeline(tmp_path):
    reference = losses(tmp_path, pipe=1, unpipelined=True)
    assert reference[-1] < 0.8 * reference[0]
    for sizes in ({"pipe": 1}, {"pipe": 2}, {"pipe": 4}, {"pipe": 2, "data": 2}):
        np.testing.assert_allclose(losses(tmp_path, **sizes), reference, rtol=1e-5, err_msg=sizes)


@pytest.mark.slow
def test_twenty_steps_in_float64_lose_the_same_to_ten_digits(tmp_path):
    with jax.enable_x64(True):
        doubles = {"dtype": "float64", "param_dtype": "float64"}
        reference = losses(tmp_path, pipe=1, unpipelined=True, **doubles)
        found = losses(tmp_path, pipe=4, schedule="gpipe", **doubles)
    np.testing.assert_allclose(found, reference, rtol=1e-10)


@pytest.mark.parametrize("pipe", [2, 4])
def test_initial_parameters_are_the_same_for_every_mesh(tmp_path, pipe):
    def parameters(pipe):
        config = tiny_config(tmp_path, model={"num_layers": 5}, mesh={"pipe": pipe})
        pipeline = build_pipeline(config)
        return pipeline.from_pipeline(initial_params(pipeline, config))

    jax.tree.map(np.testing.assert_array_equal, parameters(pipe), parameters(1))
