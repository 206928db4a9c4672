"""Whole training runs: the same losses through any pipeline, and without one."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.train.settings import tiny_config, write_text
from train.build import build_pipeline, initial_params
from train.corpus import load_corpus
from train.data import TrainingBatches, Windows
from train.optimizer import build_optimizer
from train.step import build_train_step, bytes_per_device, initial_state

NUM_STEPS = 20


def losses(folder, *, pipe, data=1, unpipelined=False):
    """The losses of a run of the tiny GPT, dropout included."""
    config = tiny_config(
        folder,
        model={"num_layers": 5},
        mesh={"pipe": pipe, "data": data},
        training={"steps": NUM_STEPS},
    )
    corpus = load_corpus([str(write_text(folder))], held_out_percent=5)
    batches = TrainingBatches(
        Windows(corpus.training, 16, origin="training text"), batch_size=4, seed=0
    )
    pipeline = build_pipeline(config)
    if unpipelined:
        pipeline.value_and_grad = pipeline.plain_value_and_grad
    optimizer = build_optimizer(config.optimizer, NUM_STEPS)
    state = initial_state(initial_params(pipeline, config), optimizer)
    train_step: Any = build_train_step(pipeline, optimizer, state, seed=config.seed)
    found = []
    for step in range(NUM_STEPS):
        state, result = train_step(state, next(batches), step)
        found.append(float(result.loss))
    assert train_step._cache_size() == 1, "a step after the first was compiled again"
    return np.array(found)


@pytest.mark.slow
def test_twenty_steps_lose_the_same_through_a_pipeline_and_without(tmp_path):
    # Every number of stages, and float64, are in tests/runtime/test_training.py.
    reference = losses(tmp_path, pipe=1, unpipelined=True)
    assert reference[-1] < 0.8 * reference[0]
    for pipe, data in ((4, 1), (2, 2)):
        found = losses(tmp_path, pipe=pipe, data=data)
        np.testing.assert_allclose(found, reference, rtol=1e-5, err_msg=f"{pipe=} {data=}")


@pytest.mark.parametrize("pipe", [2, 4])
def test_initial_parameters_are_the_same_for_every_mesh(tmp_path, pipe):
    def parameters(pipe):
        config = tiny_config(tmp_path, model={"num_layers": 5}, mesh={"pipe": pipe})
        pipeline = build_pipeline(config)
        return pipeline.from_pipeline(initial_params(pipeline, config))

    jax.tree.map(np.testing.assert_array_equal, parameters(pipe), parameters(1))


def test_the_moments_of_the_blocks_lie_on_their_devices(tmp_path):
    config = tiny_config(tmp_path)
    pipeline = build_pipeline(config)
    state = initial_state(
        initial_params(pipeline, config), build_optimizer(config.optimizer, NUM_STEPS)
    )
    params = state.params
    block, outer = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params.blocks, params.outer)
    )
    assert bytes_per_device(params) == block // 4 + outer
    # Two moments, and the int32 counts of Adam and of the learning rate.
    assert bytes_per_device(state.optimizer) == 2 * bytes_per_device(params) + 8
