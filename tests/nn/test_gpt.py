"""The GPT of models/ through pipelines: a pairwise table of shapes, meshes and choices."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpipe import Pipeline, make_mesh
from jaxpipe.nn.flax_model import take_apart
from jaxpipe.runtime import plain
from jaxpipe.runtime.model import PyTree
from models.config import GPTConfig, Positions
from models.gpt import GPT
from tests.nn.pairwise import all_pairs, pairs_of
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit

VOCABULARY, LENGTH = 11, 6


def loss(logits: jax.Array, *, targets: jax.Array, weights: jax.Array) -> tuple:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets), weights


def make_batch(num_examples: int) -> dict[str, jax.Array]:
    random = np.random.default_rng(num_examples)
    shape = (num_examples, LENGTH)
    return {
        "tokens": jnp.asarray(random.integers(0, VOCABULARY, shape), "int32"),
        "targets": jnp.asarray(random.integers(0, VOCABULARY, shape), "int32"),
        "weights": jnp.asarray(random.integers(0, 2, shape), "float64"),
        "segment_ids": jnp.asarray(np.sort(random.integers(0, 2, shape)), "int32"),
    }


FACTORS = {
    "mesh": [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)],
    "num_microbatches": [1, 3, 8],
    "remat": ["none", "selective", "full"],
    "schedule": ["gpipe", "1f1b"],
    "is_tied": [False, True],
    "dropout": [0.0, 0.2],
    "num_kv_heads": [1, 2],
    "positions": ["learned", "rotary"],
    "num_examples": [8, 10],
}
TABLE = all_pairs(FACTORS)


@functools.cache
def make_model(is_tied: bool, dropout: float, num_kv_heads: int, positions: Positions) -> GPT:
    config = GPTConfig(
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        num_layers=5,
        width=8,
        num_heads=2,
        num_kv_heads=num_kv_heads,
        positions=positions,
        norm="layernorm" if positions == "learned" else "rmsnorm",
        activation="gelu" if positions == "learned" else "swiglu",
        use_bias=positions == "learned",
        mlp_width=16,
        tied_head=is_tied,
        dropout=dropout,
        attention_dropout=dropout,
        dtype="float64",
        param_dtype="float64",
    )
    return GPT(config, rngs=nnx.Rngs(0))


def run_plain(model: GPT, batch: PyTree, key: jax.Array | None) -> tuple:
    parts = take_apart(model)
    functions = parts.functions(loss, "embed", "head")
    run = quick_jit(functools.partial(plain.value_and_grad, functions))
    return run(parts.parameters(model), batch, key)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: " ".join(map(str, row.values())))
def test_gpt(float64, row):
    model = make_model(row["is_tied"], row["dropout"], row["num_kv_heads"], row["positions"])
    pipeline = Pipeline(
        model,
        loss,
        mesh=make_mesh(*row["mesh"]),
        num_microbatches=row["num_microbatches"],
        schedule=row["schedule"],
        remat=row["remat"],
    )
    key = jax.random.key(1) if row["dropout"] else None
    batch, params = make_batch(row["num_examples"]), pipeline.params(model)
    (value, _), grads = quick_jit(pipeline.value_and_grad)(params, batch, key)
    means, expected = run_plain(model, batch, key)
    assert_close(pipeline.from_pipeline(grads), expected, FLOAT64)
    assert_close(value, means.loss, FLOAT64)


def test_outputs_are_those_of_the_model_itself(float64):
    model, batch = make_model(True, 0.0, 1, "rotary"), make_batch(10)
    pipeline = Pipeline(model, loss, mesh=make_mesh(4, 2), num_microbatches=3)
    outputs = quick_jit(pipeline.forward)(pipeline.params(model), batch)
    assert_close(outputs, model(batch["tokens"], segment_ids=batch["segment_ids"]), FLOAT64)


def test_the_table_holds_every_pair():
    found = set().union(*map(pairs_of, TABLE))
    for (first, ours), (second, theirs) in itertools.combinations(FACTORS.items(), 2):
        for pair in itertools.product(ours, theirs):
            assert ((first, pair[0]), (second, pair[1])) in found
