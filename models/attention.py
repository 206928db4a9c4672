"""Causal self-attention with shared key and value heads, by one of two programs.

A sequence may come in parts, one after the other: what earlier tokens have left, their keys and
values, is the layer's state. With a window of `n` tokens it is that of the last `n - 1` tokens.

Grouped-query attention: Ainslie, Lee-Thorp, de Jong, Zemlyanskiy, Lebron, Sanghai, 2023, GQA:
Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints, arXiv 2305.13245.

`jax.nn.dot_product_attention` is what accelerators are good at, but its softmax is float32 even
for float64 inputs and it has no dropout. The einsum program has neither limit, and materializes
the scores `[batch, heads, queries, keys]`.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from models.config import AttentionChoice, GPTConfig
from models.dropout import Dropout
from models.linear import INITIAL_SCALE, Linear
from models.precision import at_least_float32
from models.rotary import rotary_angles, rotate

Program = Literal["einsum", "fused"]

State = dict[str, Any]
"""What earlier tokens have left, by name: arrays `[batch, tokens, ...]`."""


def choose_program(attention: AttentionChoice, *, dtype: str, backend: str, drops: bool) -> Program:
    """Which program computes attention.

    Args:
        attention: What the configuration asks for.
        dtype: Dtype of queries, keys and values.
        backend: Where it runs, as `jax.default_backend()` says it.
        drops: Whether attention probabilities are dropped, which only einsum can do.

    Example:
        >>> choose_program("auto", dtype="bfloat16", backend="gpu", drops=False)
        'fused'
    """
    if drops or attention == "einsum":
        return "einsum"
    if attention == "fused":
        return "fused"
    return "einsum" if backend == "cpu" or dtype == "float64" else "fused"


def attend(
    query: Float[Array, "batch queries heads head_width"],
    key: Float[Array, "batch sequence groups head_width"],
    value: Float[Array, "batch sequence groups head_width"],
    *,
    segment_ids: Int[Array, "#batch sequence"] | None = None,
    window: int | None = None,
    program: Program = "einsum",
    drop: Callable[[Array], Array] | None = None,
) -> Float[Array, "batch queries heads head_width"]:
    """Each token averages the values of itself and earlier tokens, weighted by softmax scores.

    "Earlier" goes by the place in the array, so that positions may start again at each document
    of a packed sequence. Query head `h` uses key and value head `h // (heads / groups)`.

    Args:
        query: Queries of the last tokens of the sequence, or of all.
        key: Keys, of `groups` heads; `heads` is a multiple of it.
        value: Values, shaped as the keys.
        segment_ids: A token sees only tokens with its own id; None for one segment.
        window: How many tokens a token sees, itself included; None for all.
        program: "einsum": scores and softmax in the input's dtype, float32 if that has 16 bits.
            "fused": `jax.nn.dot_product_attention`, its softmax always in float32.
        drop: Applied to the probabilities `[batch, heads, queries, keys]`; needs "einsum".

    Returns:
        The averages, in the dtype of the input.
    """
    batch_size, num_queries, num_heads, head_width = query.shape
    num_keys, num_groups = key.shape[1:3]
    segments = None if segment_ids is None else _same_segment(segment_ids, num_queries)
    if program == "fused":
        assert drop is None, "choose_program never gives 'fused' to a layer that drops"
        is_plain = num_queries == num_keys and (window is None or window >= num_keys)
        mask = segments if is_plain else _visible(num_queries, num_keys, window, segments)
        # JAX's own function promotes dtypes inside; ours must not fail there when that is an error.
        with jax.numpy_dtype_promotion("standard"):
            return jax.nn.dot_product_attention(query, key, value, mask=mask, is_causal=is_plain)
    precise = at_least_float32(query.dtype)
    grouped = query.reshape(
        batch_size, num_queries, num_groups, num_heads // num_groups, head_width
    )
    scores = jnp.einsum("bqghd,bkgd->bghqk", grouped, key, preferred_element_type=precise)
    scores = scores.reshape(batch_size, num_heads, num_queries, num_keys) / math.sqrt(head_width)
    visible = _visible(num_queries, num_keys, window, segments)
    # An added bias, not a `where` on the scores: the backward of a sum keeps no mask.
    probabilities = jax.nn.softmax(scores + _visibility_bias(visible, precise), axis=-1)
    if drop is not None:
        probabilities = drop(probabilities)
    probabilities = probabilities.astype(value.dtype)
    probabilities = probabilities.reshape(batch_size, num_groups, -1, num_queries, num_keys)
    averages = jnp.einsum("bghqk,bkgd->bqghd", probabilities, value)
    return averages.reshape(query.shape)


def _same_segment(segment_ids: Array, num_queries: int) -> Array:
    of_queries = segment_ids[:, segment_ids.shape[1] - num_queries :]
    return of_queries[:, None, :, None] == segment_ids[:, None, None, :]


def _visible(num_queries: int, num_keys: int, window: int | None, segments: Array | None) -> Array:
    """Whether a query sees a key: `[1 or batch, 1, queries, keys]`."""
    place = jnp.arange(num_keys, dtype=jnp.int32)
    of_queries = place[num_keys - num_queries :, None]
    visible = of_queries >= place[None, :]
    if window is not None and window < num_keys:
        visible = visible & (of_queries - window < place[None, :])
    visible = visible[None, None]
    return visible if segments is None else visible & segments


def _visibility_bias(visible: Array, dtype: jnp.dtype) -> Array:
    """Zero where a query sees a key and hugely negative elsewhere."""
    # Half of the range, so that adding a negative score cannot overflow.
    return jnp.where(visible, jnp.zeros((), dtype), jnp.asarray(jnp.finfo(dtype).min / 2, dtype))


class SelfAttention(nnx.Module):
    """Projects tokens to queries, keys and values, attends, and projects back.

    Args:
        config: The model's shape.
        dropout_site: Site number of the dropout on the probabilities.
        rngs: Where the weights come from.
    """

    def __init__(self, config: GPTConfig, *, dropout_site: int, rngs: nnx.Rngs) -> None:
        self.config = config
        query_width = config.num_heads * config.head_width
        group_width = config.key_value_heads * config.head_width
        self.query = Linear(config.width, query_width, config, rngs=rngs)
        self.key = Linear(config.width, group_width, config, rngs=rngs)
        self.value = Linear(config.width, group_width, config, rngs=rngs)
        # Two sums per layer go into the residual stream; this keeps its variance near one layer's.
        output_scale = INITIAL_SCALE / math.sqrt(2 * config.num_layers)
        self.output = Linear(query_width, config.width, config, scale=output_scale, rngs=rngs)
        self.probability_dropout = Dropout(config.attention_dropout, site=dropout_site)

    def initial_state(
        self,
        x: Float[Array, "batch sequence width"],
        *,
        segment_ids: Int[Array, "#batch sequence"] | None = None,
    ) -> State:
        """The state before the first token: keys, values, and what masks are made of, of none."""
        config, batch_size = self.config, x.shape[0]
        shape = (batch_size, 0, config.key_value_heads, config.head_width)
        state = {"keys": jnp.zeros(shape, config.dtype), "values": jnp.zeros(shape, config.dtype)}
        if segment_ids is not None:
            state["segment_ids"] = jnp.zeros((batch_size, 0), segment_ids.dtype)
        if config.attention_dropout:
            state["positions"] = jnp.zeros((batch_size, 0), jnp.int32)
        return state

    def __call__(
        self,
        x: Float[Array, "batch sequence width"],
        *,
        positions: Int[Array, "#batch sequence"],
        segment_ids: Int[Array, "#batch sequence"] | None = None,
        keys: Key[Array, " batch"] | None = None,
        state: State,
    ) -> tuple[Float[Array, "batch sequence width"], State]:
        """Mixes tokens with each other and with those that the state is of.

        Args:
            x: Tokens.
            positions: Their absolute positions.
            segment_ids: Their segments; None for one.
            keys: The examples' keys of this block, or None for no dropout.
            state: What earlier tokens have left.

        Returns:
            The mixed tokens, and what these and the earlier tokens leave to later ones.
        """
        config = self.config
        head_shape = (*x.shape[:2], -1, config.head_width)
        query = self.query(x).reshape(head_shape)
        key = self.key(x).reshape(head_shape)
        value = self.value(x).reshape(head_shape)
        if config.positions == "rotary":
            angles = rotary_angles(
                positions, head_width=config.head_width, base=config.rotary_base, dtype=config.dtype
            )
            query, key = rotate(query, angles), rotate(key, angles)
        added: State = {"keys": key, "values": value}
        if segment_ids is not None:
            added["segment_ids"] = jnp.broadcast_to(segment_ids, x.shape[:2])
        if config.attention_dropout:
            added["positions"] = jnp.broadcast_to(positions, x.shape[:2]).astype(jnp.int32)
        seen = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), state, added)
        drops = self.probability_dropout.is_active(keys)
        program = choose_program(
            config.attention, dtype=config.dtype, backend=jax.default_backend(), drops=drops
        )

        def drop(probabilities: Array) -> Array:
            return self.probability_dropout.pairs(
                probabilities,
                keys=keys,
                query_positions=positions,
                key_positions=seen["positions"],
            )

        mixed = attend(
            query,
            seen["keys"],
            seen["values"],
            segment_ids=seen.get("segment_ids"),
            window=config.attention_window,
            program=program,
            drop=drop if drops else None,
        )
        return self.output(mixed.reshape(*x.shape[:2], -1)), self._within_window(seen)

    def _within_window(self, seen: State) -> State:
        """Of all tokens so far those that the next one can see."""
        if self.config.attention_window is None:
            return seen
        first = max(0, seen["keys"].shape[1] - (self.config.attention_window - 1))
        return jax.tree.map(lambda leaf: leaf[:, first:], seen)
