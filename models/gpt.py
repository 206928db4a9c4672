"""A decoder-only transformer in plain Flax NNX: embedding, stacked blocks, head.

The blocks are one module whose weights have a leading dim `[num_layers]`; `lax.scan` runs them, so
that compile time does not grow with depth. Embedding, block and head can also be called one by
one, each with the tokens' positions and with its own keys for dropout, and then give what the
whole model gives. A block also runs on a part of a sequence: given the state that earlier tokens
have left, it returns the state that it leaves, too.

Vaswani et al., 2017, Attention Is All You Need, arXiv 1706.03762; with the norm before each
sublayer, the initialization and the GELU of GPT-2 (Radford et al., 2019, Language Models are
Unsupervised Multitask Learners), or the RMSNorm, rotary positions and SwiGLU of Llama (Touvron et
al., 2023, LLaMA: Open and Efficient Foundation Language Models, arXiv 2302.13971).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from models.attention import SelfAttention, State
from models.config import GPTConfig
from models.dropout import Dropout, part_keys
from models.linear import INITIAL_SCALE, initial_weights
from models.mlp import MLP
from models.normalization import build_norm
from models.recurrence import GatedRecurrence


def _default_positions(length: int) -> Int[Array, "1 sequence"]:
    """Positions 0, 1, ... shared by all examples, and so one row of them."""
    return jnp.arange(length, dtype=jnp.int32)[None]


class Embed(nnx.Module):
    """Tokens to vectors: a table of tokens, plus one of positions if these are learned.

    Args:
        config: The model's shape.
        rngs: Where the tables come from.
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.table = initial_weights(
            (config.vocab_size, config.width), INITIAL_SCALE, config, rngs=rngs
        )
        self.position_table = (
            initial_weights(
                (config.max_sequence_length, config.width), INITIAL_SCALE, config, rngs=rngs
            )
            if config.positions == "learned"
            else None
        )
        self.dropout = Dropout(config.dropout, site=0)

    def __call__(
        self,
        tokens: Int[Array, "batch sequence"],
        *,
        positions: Int[Array, "#batch sequence"] | None = None,
        keys: Key[Array, " batch"] | None = None,
    ) -> Float[Array, "batch sequence width"]:
        """Looks the tokens up. An id outside the table gives NaN, not some other row.

        Raises:
            ValueError: There are more tokens than learned positions.
        """
        x = _look_up(self.table[...], tokens, self.config.dtype)
        length = tokens.shape[1]
        if self.position_table is not None:
            if positions is not None:
                x = x + _look_up(self.position_table[...], positions, self.config.dtype)
            elif length <= self.config.max_sequence_length:
                x = x + self.position_table[...][:length].astype(self.config.dtype)
            else:
                raise ValueError(
                    f"the sequence has {length} tokens, but positions are learned only up to "
                    f"max_sequence_length={self.config.max_sequence_length}; shorten the "
                    "sequence, raise max_sequence_length, or use positions='rotary'"
                )
        if positions is None:
            positions = _default_positions(length)
        return self.dropout(x, keys=keys, positions=positions)


def _look_up(table: Array, rows: Array, dtype: str) -> Array:
    return jnp.take(table, rows, axis=0, mode="fill", fill_value=jnp.nan).astype(dtype)


class Block(nnx.Module):
    """Attention (or a recurrence) and MLP, each normalized first and added to the residual stream.

    Args:
        config: The model's shape.
        rngs: Where the weights come from.
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = build_norm(config)
        self.attention = (
            SelfAttention(config, dropout_site=0, rngs=rngs)
            if config.mixer == "attention"
            else GatedRecurrence(config, rngs=rngs)
        )
        self.attention_dropout = Dropout(config.dropout, site=1)
        self.mlp_norm = build_norm(config)
        self.mlp = MLP(config, rngs=rngs)
        self.mlp_dropout = Dropout(config.dropout, site=2)

    def initial_state(
        self,
        x: Float[Array, "batch sequence width"],
        *,
        segment_ids: Int[Array, "#batch sequence"] | None = None,
    ) -> State:
        """The state before the first token of sequences such as those of `x`."""
        return self.attention.initial_state(x, segment_ids=segment_ids)

    def __call__(
        self,
        x: Float[Array, "batch sequence width"],
        *,
        positions: Int[Array, "#batch sequence"] | None = None,
        segment_ids: Int[Array, "#batch sequence"] | None = None,
        keys: Key[Array, " batch"] | None = None,
        state: State | None = None,
    ) -> Any:
        """One layer, same shape and dtype out as in.

        Args:
            x: The residual stream.
            positions: Absolute positions, for rotary angles and dropout; None for 0, 1, ...
            segment_ids: Tokens attend only to tokens with the same id; None for one segment.
            keys: One PRNG key per example, specific to the step and this layer; None for no
                dropout.
            state: What earlier tokens of the sequences have left; None if there are none. With a
                state, positions must be given.

        Returns:
            The new stream; with a state, `(stream, state)`.
        """
        before = self.initial_state(x, segment_ids=segment_ids) if state is None else state
        if positions is None:
            if state is not None:
                raise ValueError(
                    "tokens that follow others do not start at position 0: give their positions "
                    "beside their state"
                )
            positions = _default_positions(x.shape[1])
        mixed, after = self.attention(
            self.attention_norm(x),
            positions=positions,
            segment_ids=segment_ids,
            keys=keys,
            state=before,
        )
        x = x + self.attention_dropout(mixed, keys=keys, positions=positions)
        mapped = self.mlp(self.mlp_norm(x))
        x = x + self.mlp_dropout(mapped, keys=keys, positions=positions)
        return x if state is None else (x, after)


class Head(nnx.Module):
    """Normalizes and scores every token of the vocabulary.

    Args:
        config: The model's shape.
        embed: The embedding; a tied head holds the very same `nnx.Param` as its table.
        rngs: Where the weights of an untied head come from.
    """

    def __init__(self, config: GPTConfig, embed: Embed, *, rngs: nnx.Rngs) -> None:
        self.dtype = config.dtype
        self.norm = build_norm(config)
        self.table = (
            embed.table
            if config.tied_head
            else initial_weights(
                (config.vocab_size, config.width), INITIAL_SCALE, config, rngs=rngs
            )
        )

    def __call__(
        self,
        x: Float[Array, "batch sequence width"],
        *,
        keys: Key[Array, " batch"] | None = None,
    ) -> Float[Array, "batch sequence vocab"]:
        """Logits in the compute dtype (take their softmax in float32 if that has 16 bits).

        `keys` are accepted as by the other parts, but nothing is dropped here.
        """
        del keys
        return jnp.einsum("bsw,vw->bsv", self.norm(x), self.table[...].astype(self.dtype))


class GPT(nnx.Module):
    """A language model: `embed`, `blocks` (all layers stacked in one `Block`), `head`.

    Args:
        config: The model's shape.
        rngs: The seed; initial weights depend on it and on `config` alone.

    Raises:
        ValueError: The configuration asks for float64 where JAX would silently give float32.

    Example:
        >>> config = GPTConfig(
        ...     vocab_size=11, max_sequence_length=8, num_layers=3, width=8, num_heads=2
        ... )
        >>> model = GPT(config, rngs=nnx.Rngs(0))
        >>> model.blocks.attention.query.kernel.shape
        (3, 8, 8)
        >>> model(jnp.zeros((2, 5), jnp.int32)).shape
        (2, 5, 11)
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs) -> None:
        for name in ("dtype", "param_dtype"):
            wanted = getattr(config, name)
            if jax.dtypes.canonicalize_dtype(wanted) != wanted:
                raise ValueError(
                    f"{name}={wanted!r} needs 64-bit JAX, which is off, so that arrays would "
                    "silently be float32; set JAX_ENABLE_X64=1, or wrap the program in "
                    "`with jax.enable_x64(True):`"
                )
        self.config = config
        self.embed = Embed(config, rngs=rngs)
        layer_keys = jax.random.split(rngs.params(), config.num_layers)
        self.blocks = nnx.vmap(lambda key: Block(config, rngs=nnx.Rngs(params=key)))(layer_keys)
        self.head = Head(config, self.embed, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch sequence"],
        *,
        positions: Int[Array, "#batch sequence"] | None = None,
        segment_ids: Int[Array, "#batch sequence"] | None = None,
        keys: Key[Array, " batch"] | None = None,
    ) -> Float[Array, "batch sequence vocab"]:
        """Scores of the token that follows each token.

        Args:
            tokens: Token ids.
            positions: Absolute positions; None for 0, 1, ...
            segment_ids: Which packed document a token belongs to; None for one document.
            keys: One typed PRNG key per example, specific to the step; the embedding folds in 0,
                layer `i` folds in `1 + i`, the head `1 + num_layers`. None for no dropout.
        """
        num_layers = self.config.num_layers
        x = self.embed(tokens, positions=positions, keys=part_keys(keys, 0))
        structure, weights = nnx.split(self.blocks)

        def run_layer(x: Array, layer: tuple[Array, Any]) -> tuple[Array, None]:
            index, layer_weights = layer
            block = nnx.merge(structure, layer_weights)
            layer_keys = part_keys(keys, 1 + index)
            y = block(x, positions=positions, segment_ids=segment_ids, keys=layer_keys)
            return y, None

        x, _ = jax.lax.scan(run_layer, x, (jnp.arange(num_layers, dtype=jnp.int32), weights))
        return self.head(x, keys=part_keys(keys, 1 + num_layers))
