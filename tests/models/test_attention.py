"""Attention: both programs against a plain loop and against each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.attention import SelfAttention, attend, choose_program
from models.config import GPTConfig

compiled = jax.jit(attend, static_argnames="program")

SEGMENTS = jnp.asarray([[0, 0, 0, 1, 1, 2, 2], [5, 5, 5, 5, 5, 5, 0]], jnp.int32)


def random_heads(num_heads: int, num_groups: int, dtype="float32"):
    keys = jax.random.split(jax.random.key(0), 3)
    heads = (num_heads, num_groups, num_groups)
    return [
        jax.random.normal(key, (2, 7, count, 4), jnp.float32).astype(dtype)
        for key, count in zip(keys, heads, strict=True)
    ]


def attend_by_loops(query, key, value, segment_ids):
    """The definition, one token and head at a time, in NumPy."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    averages = np.zeros_like(query)
    for b, q, h in np.ndindex(*query.shape[:3]):
        group = h // (query.shape[2] // key.shape[2])
        seen = [
            k for k in range(q + 1) if segment_ids is None or segment_ids[b, k] == segment_ids[b, q]
        ]
        scores = key[b, seen, group] @ query[b, q, h] / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max())
        averages[b, q, h] = weights / weights.sum() @ value[b, seen, group]
    return averages


@pytest.mark.parametrize("program", ["einsum", "fused"])
@pytest.mark.parametrize("segment_ids", [None, SEGMENTS], ids=["one", "packed"])
@pytest.mark.parametrize(("num_heads", "num_groups"), [(4, 4), (4, 2), (6, 1)])
def test_attention_is_what_its_definition_says(program, segment_ids, num_heads, num_groups):
    query, key, value = random_heads(num_heads, num_groups)
    found = compiled(query, key, value, segment_ids=segment_ids, program=program)
    expected = attend_by_loops(query, key, value, segment_ids)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("segment_ids", [None, SEGMENTS], ids=["one", "packed"])
def test_both_programs_have_the_same_gradients(segment_ids):
    def loss(program, *inputs):
        return jnp.square(attend(*inputs, segment_ids=segment_ids, program=program)).sum()

    inputs = random_heads(4, 2)
    by_einsum, by_fused = (
        jax.jit(jax.grad(functools.partial(loss, program), argnums=(0, 1, 2)))(*inputs)
        for program in ("einsum", "fused")
    )
    for found, expected in zip(by_einsum, by_fused, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_shared_heads_are_repeated_heads():
    query, key, value = random_heads(6, 2)
    repeated = compiled(query, jnp.repeat(key, 3, axis=2), jnp.repeat(value, 3, axis=2))
    np.testing.assert_allclose(compiled(query, key, value), repeated, rtol=1e-6, atol=1e-7)


def test_float64_is_float64_throughout():
    with jax.enable_x64(True):
        query, key, value = random_heads(4, 2, "float64")
        found = compiled(query, key, value, segment_ids=SEGMENTS)
        assert found.dtype == jnp.float64
        expected = attend_by_loops(query, key, value, SEGMENTS)
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("program", "dtype"),
    # JAX's own function refuses float16 on the CPU.
    [("einsum", "bfloat16"), ("einsum", "float16"), ("fused", "bfloat16")],
)
def test_16_bit_inputs_have_a_float32_softmax(program, dtype):
    query, key, value = random_heads(4, 2, dtype)
    found = compiled(query, key, value, program=program)
    assert found.dtype == dtype
    text = str(jax.make_jaxpr(lambda *x: attend(*x, program=program))(query, key, value))
    softmax = next(line for line in text.splitlines() if " = exp " in line)
    assert ":f32[" in softmax
    np.testing.assert_allclose(
        found.astype(jnp.float32), attend_by_loops(query, key, value, None), rtol=0.05, atol=0.02
    )


def test_no_square_mask_is_captured_or_kept_for_the_backward():
    inputs = random_heads(4, 2)
    closed = jax.make_jaxpr(lambda *x: attend(*x, segment_ids=SEGMENTS))(*inputs)
    assert all(np.size(constant) <= SEGMENTS.size for constant in closed.consts)
    _, backward = jax.vjp(lambda *x: attend(*x, segment_ids=SEGMENTS), *inputs)
    kept = [leaf for leaf in jax.tree.leaves(backward) if hasattr(leaf, "dtype")]
    assert kept
    assert not [leaf.shape for leaf in kept if leaf.dtype == jnp.bool_]


def test_extreme_scores_stay_finite():
    query, key, value = random_heads(4, 2)
    found = compiled(1e18 * query, 1e18 * key, value, segment_ids=SEGMENTS)
    assert bool(jnp.isfinite(found).all())


@pytest.mark.parametrize(
    ("attention", "dtype", "backend", "drops", "expected"),
    [
        ("auto", "float32", "cpu", False, "einsum"),
        ("auto", "float32", "gpu", False, "fused"),
        ("auto", "bfloat16", "tpu", False, "fused"),
        ("auto", "float64", "gpu", False, "einsum"),
        ("auto", "bfloat16", "gpu", True, "einsum"),
        ("einsum", "bfloat16", "gpu", False, "einsum"),
        ("fused", "float32", "cpu", False, "fused"),
        ("fused", "float32", "gpu", True, "einsum"),
    ],
)
def test_which_program_runs(attention, dtype, backend, drops, expected):
    assert choose_program(attention, dtype=dtype, backend=backend, drops=drops) == expected


CONFIG = GPTConfig(
    vocab_size=16,
    max_sequence_length=8,
    num_layers=2,
    width=8,
    num_heads=4,
    num_kv_heads=2,
    attention_dropout=0.5,
)


def run(layer: SelfAttention, x: jax.Array, keys: jax.Array | None = None) -> jax.Array:
    """The layer on whole sequences."""
    positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
    return layer(x, positions=positions, keys=keys, state=layer.initial_state(x))[0]


@pytest.mark.parametrize("attention", ["einsum", "fused"])
def test_probabilities_are_dropped_only_with_keys(attention):
    layer = SelfAttention(
        dataclasses.replace(CONFIG, attention=attention), dropout_site=0, rngs=nnx.Rngs(0)
    )
    x = jax.random.normal(jax.random.key(1), (2, 7, 8))
    keys = jax.random.split(jax.random.key(2), 2)
    call = jax.jit(lambda x, keys: run(layer, x, keys))
    dropped = call(x, keys)
    assert not np.allclose(call(x, None), dropped)
    alone = call(x[1:], keys[1:])
    np.testing.assert_allclose(alone, dropped[1:], rtol=1e-5, atol=1e-7)


def test_a_head_may_be_wider_than_its_share():
    layer = SelfAttention(dataclasses.replace(CONFIG, head_dim=6), dropout_site=0, rngs=nnx.Rngs(0))
    assert layer.key.kernel.shape == (8, 12)
    assert run(layer, jnp.ones((2, 7, 8))).shape == (2, 7, 8)
