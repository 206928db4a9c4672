"""The GPT of models/ in token slices, with all that borders between slices could disturb."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpipe import Pipeline, make_mesh
from jaxpipe.lower import Pool
from jaxpipe.nn.flax_model import take_apart
from jaxpipe.runtime.layer_program import trace_layer
from jaxpipe.runtime.sequence_state import describe_state
from jaxpipe.runtime.slices import cut_tokens
from models.config import GPTConfig
from models.gpt import GPT
from tests.nn.pairwise import all_pairs
from tests.nn.test_gpt import run_plain
from tests.runtime.closeness import FLOAT64, assert_close
from tests.runtime.quick import quick_jit

VOCABULARY, LENGTH = 11, 13


def loss(logits: jax.Array, *, targets: jax.Array, weights: jax.Array) -> tuple:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets), weights


def make_batch(num_examples: int, *, is_packed: bool) -> dict[str, jax.Array]:
    """Tokens, their targets, and for packed examples two documents each, numbered from 0."""
    random = np.random.default_rng(num_examples)
    shape = (num_examples, LENGTH)
    batch = {
        "tokens": jnp.asarray(random.integers(0, VOCABULARY, shape), "int32"),
        "targets": jnp.asarray(random.integers(0, VOCABULARY, shape), "int32"),
        "weights": jnp.asarray(random.integers(0, 2, shape), "float64"),
    }
    if is_packed:
        ids = np.sort(random.integers(0, 2, shape))
        starts = np.argmax(ids, axis=1)[:, None] * ids
        batch["segment_ids"] = jnp.asarray(ids, "int32")
        batch["positions"] = jnp.asarray(np.arange(LENGTH) - starts, "int32")
    return batch


@functools.cache
def make_model(kind: str, positions: Any, num_kv_heads: int, is_tied: bool, dropout: float) -> GPT:
    is_attention = kind != "recurrence"
    config = GPTConfig(
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        num_layers=4,
        width=8,
        num_heads=2,
        num_kv_heads=num_kv_heads,
        mixer="attention" if is_attention else "recurrence",
        attention_window=5 if kind == "window" else None,
        positions=positions,
        norm="layernorm" if positions == "learned" else "rmsnorm",
        activation="gelu" if positions == "learned" else "swiglu",
        use_bias=positions == "learned",
        mlp_width=16,
        tied_head=is_tied,
        dropout=dropout,
        attention_dropout=dropout if is_attention else 0.0,
        dtype="float64",
        param_dtype="float64",
    )
    return GPT(config, rngs=nnx.Rngs(0))


FACTORS = {
    "kind": ["attention", "window", "recurrence"],
    "slices": [1, 2, 4, (3, 1, 2, 3, 1, 2, 1)],
    "pipe": [1, 2, 4],
    "num_microbatches": [1, 2, 5],
    "remat": ["none", "selective", "full"],
    "schedule": ["terapipe", "seq1f1b", "zb_h1"],
    "positions": ["learned", "rotary"],
    "num_kv_heads": [1, 2],
    "is_tied": [False, True],
    "dropout": [0.0, 0.2],
    "is_packed": [False, True],
}
TABLE = all_pairs(FACTORS)


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE, ids=lambda row: " ".join(map(str, row.values())))
def test_gpt_in_slices(float64, row):
    check(**row)


@pytest.mark.parametrize("kind", FACTORS["kind"])
def test_every_kind_of_state(float64, kind):
    check(
        kind=kind,
        slices=(4, 6, 3),
        pipe=2,
        num_microbatches=2,
        remat="selective",
        schedule="seq1f1b",
        positions="rotary",
        num_kv_heads=1,
        is_tied=True,
        dropout=0.2,
        is_packed=True,
    )


def check(
    *,
    kind: str,
    slices: Any,
    pipe: int,
    num_microbatches: int,
    remat: str,
    schedule: str,
    positions: str,
    num_kv_heads: int,
    is_tied: bool,
    dropout: float,
    is_packed: bool,
) -> None:
    model = make_model(kind, positions, num_kv_heads, is_tied, dropout)
    pipeline = Pipeline(
        model,
        loss,
        mesh=make_mesh(pipe),
        num_microbatches=num_microbatches,
        schedule=schedule,
        remat=remat,
        slices=slices,
    )
    key = jax.random.key(1) if dropout else None
    batch, params = make_batch(6, is_packed=is_packed), pipeline.params(model)
    (value, _), grads = quick_jit(pipeline.value_and_grad)(params, batch, key)
    means, expected = run_plain(model, batch, key)
    assert_close(pipeline.from_pipeline(grads), expected, FLOAT64)
    assert_close(value, means.loss, FLOAT64)


def layer_programs(kind: str, lengths: tuple[int, ...], policy: Any) -> list:
    """The programs of a block of the GPT on slices of these lengths, for one example."""
    model = make_model(kind, "rotary", 2, True, 0.0)
    parts = take_apart(model)
    functions = parts.functions(loss, "embed", "head")
    block = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), parts.parameter_shapes()
    ).blocks
    slices = cut_tokens(sum(lengths), len(lengths), lengths)
    inputs = [jax.ShapeDtypeStruct((1, each.length, 8), jnp.float64) for each in slices]
    positions = [jax.ShapeDtypeStruct((1, each.length), jnp.int32) for each in slices]
    sides = [({"positions": each}, None) for each in positions]
    assert functions.stateful is not None
    state = describe_state(functions.stateful, block, inputs, sides, slices)
    return [
        trace_layer(functions, block, x, side, policy, piece=piece, state=state)
        for piece, x, side in zip(slices, inputs, sides, strict=True)
    ]


SAVE_MATMULS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def test_no_slice_keeps_keys_and_values(float64):
    """Its piece of the state has its own, and those of earlier slices have theirs."""
    for program in layer_programs("attention", (3, 3, 3, 3), SAVE_MATMULS):
        # The block's input, the query, attention's projection, and both branches of the MLP.
        assert [leaf.shape for leaf in program.stash] == [
            (1, 3, 8), (1, 3, 8), (1, 3, 8), (1, 3, 16), (1, 3, 16)
        ]  # fmt: skip


def test_with_everything_kept_scores_alone_grow(float64):
    first, *_, last = layer_programs("attention", (3, 3, 3, 3), None)
    scores = [leaf.shape for leaf in last.stash if 12 in leaf.shape]
    assert scores == [(1, 2, 3, 12), (1, 2, 1, 3, 12)]
    others = [
        [leaf.shape for leaf in each.stash if each is not last or 12 not in leaf.shape]
        for each in (first, last)
    ]
    assert others[1] == [
        shape for shape in others[0] if shape not in [(1, 2, 3, 3), (1, 2, 1, 3, 3)]
    ]


def test_w_waits_for_no_scores(float64):
    """B computes what attention averaged, of which W needs the result, while it has the scores."""
    for program in layer_programs("attention", (3, 3, 3, 3), SAVE_MATMULS):
        assert max(leaf.size for leaf in program.backward_split.kept) == 3 * 16


def test_a_window_and_a_recurrence_keep_a_state_of_one_size(float64):
    for kind in ("window", "recurrence"):
        second, third, fourth = layer_programs(kind, (3, 3, 3, 3), SAVE_MATMULS)[1:]
        assert second.stash == third.stash == fourth.stash
    sizes = []
    for kind in ("attention", "window", "recurrence"):
        pipeline = Pipeline(
            make_model(kind, "rotary", 2, True, 0.0),
            loss,
            mesh=make_mesh(2),
            num_microbatches=2,
            schedule="seq1f1b",
            slices=(4, 3, 3, 3),
        )
        plan = pipeline.plan(pipeline.param_shapes, make_batch(2, is_packed=False))
        sizes.append(plan.memory.states // (plan.program.max_slots(Pool.STATE) * 2 * 8 * 8))
    # Per slice and layer: keys and values of 4 tokens; of a window's 4; a hidden state.
    assert sizes == [2 * 4, 2 * 4, 1]


def attention_flops(lengths: tuple[int, ...]) -> int:
    """Multiplications of scores and averages in the forwards of all slices, by their jaxprs."""
    return sum(
        count_batched_products(program._forward)
        for program in layer_programs("attention", lengths, None)
    )


def count_batched_products(program: Any) -> int:
    total = 0
    for equation in program.jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), (batched, _) = equation.params["dimension_numbers"]
            if batched:
                left = equation.invars[0].aval.shape
                width = int(np.prod([left[dim] for dim in contracted]))
                total += width * int(np.prod(equation.outvars[0].aval.shape))
    return total


@pytest.mark.parametrize("lengths", [(12,), (6, 6), (3, 3, 3, 3), (5, 4, 2, 1), (1,) * 12])
def test_attention_does_the_lower_triangle_and_half_of_the_diagonal_blocks(float64, lengths):
    """In pairs of tokens: L^2 / 2 below the diagonal, and half a block for each slice on it."""
    pairs = sum(lengths) ** 2 / 2 + sum(length**2 for length in lengths) / 2
    width = 8
    assert attention_flops(lengths) == 2 * pairs * width  # scores, then averages
