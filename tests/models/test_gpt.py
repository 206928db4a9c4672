"""The whole model, and its parts called one by one."""

import ast
import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import models
from models.attention import SelfAttention
from models.config import GPTConfig
from models.dropout import part_keys
from models.gpt import GPT, Block

LLAMA_LIKE = GPTConfig(
    vocab_size=19,
    max_sequence_length=12,
    num_layers=3,
    width=8,
    num_heads=4,
    num_kv_heads=2,
    tied_head=False,
)
GPT2_LIKE = GPTConfig(
    vocab_size=19,
    max_sequence_length=12,
    num_layers=3,
    width=8,
    num_heads=2,
    norm="layernorm",
    positions="learned",
    activation="gelu",
    use_bias=True,
    tied_head=True,
)
KINDS = pytest.mark.parametrize("config", [LLAMA_LIKE, GPT2_LIKE], ids=["llama", "gpt2"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])


def with_dropout(config: GPTConfig) -> GPTConfig:
    return dataclasses.replace(config, dropout=0.3, attention_dropout=0.3)


@functools.cache
def build(config: GPTConfig) -> GPT:
    """A model whose weights are large enough for every part of it to matter. Read it only."""

    @jax.jit
    def make() -> nnx.State:
        return jax.tree.map(lambda x: 10 * x if x.ndim > 1 else x, nnx.state(new_model(config)))

    return nnx.merge(nnx.graphdef(nnx.eval_shape(lambda: new_model(config))), make())


def new_model(config: GPTConfig) -> GPT:
    return GPT(config, rngs=nnx.Rngs(7))


@functools.partial(jax.jit, static_argnums=0)
def run(structure: nnx.GraphDef[Any], state: nnx.State, *arguments: Any, **options: Any) -> Any:
    return nnx.merge(structure, state)(*arguments, **options)


def call(module: nnx.Module, *arguments: Any, **options: Any) -> jax.Array:
    """`module(...)`, compiled once for all modules of one structure and arguments of one shape."""
    return run(*nnx.split(module), *arguments, **options)


def random_tokens(shape: tuple[int, ...] = (2, 9), vocab_size: int = 19) -> jax.Array:
    return jax.random.randint(jax.random.key(5), shape, 0, vocab_size, jnp.int32)


def example_keys(count: int = 2) -> jax.Array:
    return jax.random.split(jax.random.key(11), count)


@KINDS
@DTYPES
@pytest.mark.parametrize("drops", [False, True], ids=["plain", "dropout"])
def test_everything_has_the_shape_and_dtype_asked_for(config, dtype, drops):
    with jax.enable_x64(True):
        config = dataclasses.replace(with_dropout(config), dtype=dtype, param_dtype=dtype)
        options: dict[str, Any] = {"segment_ids": jnp.zeros((2, 9), jnp.int32)}
        if drops:
            options["keys"] = example_keys()

        def outputs() -> tuple[Any, ...]:
            model = new_model(config)
            x = model.embed(random_tokens(), keys=options.get("keys"))
            y = layer_of(model, 0)(x, **options)
            return nnx.state(model), x, y, model.head(y), model(random_tokens(), **options)

        state, *arrays = jax.eval_shape(outputs)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves((state, arrays)))
        assert [x.shape for x in arrays] == [(2, 9, 8), (2, 9, 8), (2, 9, 19), (2, 9, 19)]


@KINDS
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_logits_are_nearly_the_same_in_every_dtype(config, dtype):
    reference = call(build(config), random_tokens())
    with jax.enable_x64(True):
        model = build(dataclasses.replace(config, dtype=dtype, param_dtype=dtype))
        logits = call(model, random_tokens()).astype(jnp.float32)
    error = float(jnp.sqrt(jnp.square(logits - reference).mean()) / reference.std())
    # bfloat16 keeps 8 bits, of weights and of sums: 3 % after three layers of large weights.
    assert error < (0.05 if dtype == "bfloat16" else 1e-5)


@KINDS
def test_a_float64_model_computes_in_nothing_less(config):
    with jax.enable_x64(True):
        config = dataclasses.replace(with_dropout(config), dtype="float64", param_dtype="float64")
        structure, state = nnx.split(build(config))

        def loss(state, keys):
            return nnx.merge(structure, state)(random_tokens(), keys=keys).sum()

        text = str(jax.make_jaxpr(jax.grad(loss))(state, example_keys()))
        assert "f64[" in text
        assert "f32[" not in text


@KINDS
def test_a_16_bit_model_of_float32_weights_has_float32_gradients(config):
    config = dataclasses.replace(config, dtype="bfloat16")
    structure, state = nnx.split(build(config))

    def loss(state):
        return nnx.merge(structure, state)(random_tokens()).astype(jnp.float32).std()

    gradients = jax.tree.leaves(jax.eval_shape(jax.grad(loss), state))
    assert all(leaf.dtype == jnp.float32 for leaf in gradients)


@KINDS
@pytest.mark.parametrize("attention", ["auto", "fused"])
def test_later_tokens_never_change_earlier_logits(config, attention):
    model = build(dataclasses.replace(config, attention=attention))
    tokens = random_tokens()
    before = call(model, tokens)
    for place in (3, 8):
        after = call(model, tokens.at[:, place].set((tokens[:, place] + 1) % 19))
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert not np.allclose(after[:, place:], before[:, place:], atol=1e-3)


@KINDS
@pytest.mark.parametrize("attention", ["auto", "fused"])
def test_packed_documents_do_not_see_one_another(config, attention):
    model = build(dataclasses.replace(config, attention=attention))
    tokens = random_tokens()
    lengths = (4, 5)
    segment_ids = jnp.asarray([[0] * 4 + [1] * 5] * 2, jnp.int32)
    restarting = jnp.asarray([[*range(4), *range(5)]] * 2, jnp.int32)
    packed = call(model, tokens, positions=restarting, segment_ids=segment_ids)
    start = 0
    for length in lengths:
        alone = call(model, tokens[:, start : start + length])
        np.testing.assert_allclose(packed[:, start : start + length], alone, rtol=1e-4, atol=1e-5)
        start += length


def test_restarting_positions_alone_do_not_reveal_the_future():
    # Going by positions instead of places, token 1 would see token 3, whose position is 0.
    model, tokens = build(LLAMA_LIKE), random_tokens((1, 6))
    positions = jnp.asarray([[0, 1, 2, 0, 1, 2]], jnp.int32)
    before = call(model, tokens, positions=positions)
    after = call(model, tokens.at[0, 3].set((tokens[0, 3] + 1) % 19), positions=positions)
    np.testing.assert_array_equal(after[:, :3], before[:, :3])


def test_rotary_logits_depend_on_distances_alone():
    model, tokens = build(LLAMA_LIKE), random_tokens()
    shifted = call(model, tokens, positions=jnp.arange(100, 109, dtype=jnp.int32)[None])
    np.testing.assert_allclose(shifted, call(model, tokens), rtol=1e-3, atol=1e-3)


def test_learned_positions_are_looked_up():
    model, tokens = build(GPT2_LIKE), random_tokens()
    same = call(model, tokens, positions=jnp.arange(9, dtype=jnp.int32)[None])
    np.testing.assert_allclose(same, call(model, tokens), rtol=1e-5, atol=1e-5)
    shifted = call(model, tokens, positions=jnp.arange(3, 12, dtype=jnp.int32)[None])
    assert not np.allclose(shifted, same, atol=1e-3)


def layer_of(model: GPT, index: int) -> Block:
    structure, weights = nnx.split(model.blocks)
    return nnx.merge(structure, jax.tree.map(lambda x: x[index], weights))


@KINDS
@pytest.mark.parametrize("drops", [False, True], ids=["plain", "dropout"])
def test_the_model_is_its_parts_one_after_another(config, drops):
    model = build(with_dropout(config))
    keys = example_keys() if drops else None
    tokens = random_tokens()
    x = call(model.embed, tokens, keys=part_keys(keys, 0))
    for index in range(config.num_layers):
        x = call(layer_of(model, index), x, keys=part_keys(keys, 1 + index))
    logits = call(model.head, x, keys=part_keys(keys, 1 + config.num_layers))
    np.testing.assert_allclose(call(model, tokens, keys=keys), logits, rtol=1e-5, atol=1e-5)


@KINDS
def test_dropout_does_not_notice_how_the_batch_is_cut(config):
    model, tokens, keys = build(with_dropout(config)), random_tokens(), example_keys()
    whole = call(model, tokens, keys=keys)
    assert not np.allclose(whole, call(model, tokens), atol=1e-3)
    for example in range(2):
        cut = slice(example, example + 1)
        alone = call(model, tokens[cut], keys=keys[cut])
        np.testing.assert_allclose(alone, whole[cut], rtol=1e-5, atol=1e-5)


@KINDS
def test_dropout_does_not_notice_how_the_sequence_is_cut(config):
    # A prefix sees all that it needs: its logits, masks included, are those of the whole.
    model, tokens, keys = build(with_dropout(config)), random_tokens(), example_keys()
    prefix = call(model, tokens[:, :5], keys=keys)
    whole = call(model, tokens, keys=keys)
    np.testing.assert_allclose(prefix, whole[:, :5], rtol=1e-5, atol=1e-5)


def test_layers_drop_different_features():
    model, keys = build(with_dropout(LLAMA_LIKE)), example_keys()
    x, block = jnp.ones((2, 9, 8)), layer_of(model, 0)
    first, second = (call(block, x, keys=part_keys(keys, part)) for part in (1, 2))
    assert not np.allclose(first, second)


def test_a_tied_head_holds_the_embedding_itself():
    model = build(GPT2_LIKE)
    assert model.head.table is model.embed.table
    _, state = nnx.split((model.embed, model.head))
    shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
    assert shapes.count((19, 8)) == 1
    structure, state = nnx.split(model)
    loss = lambda state: nnx.merge(structure, state)(random_tokens()).std()  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(state)
    merged = nnx.merge(structure, gradient)
    # Rows of tokens that never occur get a gradient from the head alone, and get one.
    assert bool((jnp.abs(merged.embed.table[...]).sum(axis=-1) > 0).all())


def test_an_untied_head_has_its_own_table():
    model = build(LLAMA_LIKE)
    assert model.head.table is not model.embed.table
    assert not np.array_equal(model.head.table[...], model.embed.table[...])


@KINDS
def test_blocks_are_stacked_and_differ(config):
    model = build(config)
    assert type(model.blocks) is Block
    leaves = jax.tree.leaves(nnx.state(model.blocks, nnx.Param))
    assert len(leaves) == len(jax.tree.leaves(nnx.state(model.blocks)))
    assert all(leaf.shape[0] == config.num_layers for leaf in leaves)
    assert isinstance(model.blocks.attention, SelfAttention)
    kernels = np.asarray(model.blocks.attention.query.kernel[...])
    assert not np.array_equal(kernels[0], kernels[1])


def test_initial_weights_depend_on_the_seed_alone():
    def weights(seed: int) -> list[Any]:
        return jax.tree.leaves(nnx.state(GPT(LLAMA_LIKE, rngs=nnx.Rngs(seed))))

    first, again, other = weights(0), weights(0), weights(1)
    compiled = jax.jit(lambda: nnx.state(GPT(LLAMA_LIKE, rngs=nnx.Rngs(0))))()
    for a, b, c in zip(first, again, jax.tree.leaves(compiled), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-6)
    assert not np.array_equal(first[-1], other[-1])


def test_initial_scales_are_those_of_gpt2():
    config = dataclasses.replace(GPT2_LIKE, width=64, vocab_size=200, num_layers=8)
    model = GPT(config, rngs=nnx.Rngs(0))
    assert model.embed.position_table is not None
    assert isinstance(model.blocks.attention, SelfAttention)
    for table, scale in (
        (model.embed.table, 0.02),
        (model.embed.position_table, 0.02),
        (model.blocks.attention.query.kernel, 0.02),
        (model.blocks.attention.output.kernel, 0.02 / 4),
        (model.blocks.mlp.down.kernel, 0.02 / 4),
    ):
        assert float(table[...].std()) == pytest.approx(scale, rel=0.08)


def test_compile_time_does_not_grow_with_depth():
    def equations(num_layers: int) -> int:
        config = dataclasses.replace(LLAMA_LIKE, num_layers=num_layers)
        structure, state = nnx.split(nnx.eval_shape(lambda: new_model(config)))
        text = str(
            jax.make_jaxpr(lambda state: nnx.merge(structure, state)(random_tokens()))(state)
        )
        return len(text.splitlines())

    assert equations(2) == equations(6)


def test_default_positions_are_one_row():
    structure, state = nnx.split(build(LLAMA_LIKE))
    text = str(jax.make_jaxpr(lambda s: nnx.merge(structure, s)(random_tokens()))(state))
    assert "f32[1,9,1,1] = cos" in text
    assert "f32[2,9,1,1] = cos" not in text


def test_unknown_tokens_are_loud():
    model = build(LLAMA_LIKE)
    tokens = random_tokens()
    logits = call(model, tokens.at[1, 4].set(19))
    assert bool(jnp.isnan(logits[1, 4:]).all())
    np.testing.assert_allclose(logits[0], call(model, tokens)[0], rtol=1e-5, atol=1e-6)


def test_too_many_tokens_for_learned_positions():
    model = build(GPT2_LIKE)
    with pytest.raises(
        ValueError, match="the sequence has 13 tokens, but positions are learned"
    ) as e:
        call(model, random_tokens((1, 13)))
    assert "max_sequence_length=12; shorten the sequence, raise" in str(e.value)


def test_rotary_positions_have_no_end():
    assert call(build(LLAMA_LIKE), random_tokens((1, 13))).shape == (1, 13, 19)


@pytest.mark.parametrize("name", ["dtype", "param_dtype"])
def test_float64_without_64_bit_jax_is_refused(name):
    config = dataclasses.replace(LLAMA_LIKE, **{name: "float64"})
    with pytest.raises(ValueError, match=f"{name}='float64' needs 64-bit JAX, which is off"):
        GPT(config, rngs=nnx.Rngs(0))


def test_models_know_nothing_of_pipelines():
    for path in sorted(pathlib.Path(models.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not [name for name in names if name.split(".")[0] in ("jaxpipe", "train")], path
