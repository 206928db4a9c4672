"""A gated linear recurrence: tokens are mixed by a state of fixed size instead of by attention.

    h_t = a_t * h_(t-1) + (1 - a_t) * v_t        y_t = W_o (silu(g_t) * h_t)

with gates `a_t` and values `v_t` that depend on the token alone, feature by feature (Martin, Cundy,
2018, Parallelizing Linear Recurrent Neural Nets Over Sequence Length, arXiv 1709.04057; Qin, Yang,
Zhong, 2023, Hierarchically Gated Recurrent Neural Network for Sequence Modeling, arXiv
2311.04823). Since it is linear in the state, all tokens are computed at once, in a parallel scan of
logarithmic depth.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from models.config import GPTConfig
from models.linear import INITIAL_SCALE, Linear
from models.precision import at_least_float32

State = dict[str, Any]
"""What earlier tokens have left, by name: arrays `[batch, ...]`."""


class GatedRecurrence(nnx.Module):
    """Projects tokens to gates and values, runs the recurrence, and projects back.

    Args:
        config: The model's shape.
        rngs: Where the weights come from.
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        width = config.width
        self.decay = Linear(width, width, config, rngs=rngs)
        self.value = Linear(width, width, config, rngs=rngs)
        self.gate = Linear(width, width, config, rngs=rngs)
        output_scale = INITIAL_SCALE / math.sqrt(2 * config.num_layers)
        self.output = Linear(width, width, config, scale=output_scale, rngs=rngs)

    def initial_state(
        self,
        x: Float[Array, "batch sequence width"],
        *,
        segment_ids: Int[Array, "#batch sequence"] | None = None,
    ) -> State:
        """The state before the first token."""
        precise = at_least_float32(x.dtype)
        state: State = {"hidden": jnp.zeros((x.shape[0], self.config.width), precise)}
        if segment_ids is not None:
            state["segment_id"] = jnp.zeros((x.shape[0],), segment_ids.dtype)
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
            positions: Accepted as by attention, but of no use here: the order says it all.
            segment_ids: Their segments: each starts from an empty state. None for one.
            keys: Accepted as by attention; nothing is dropped here.
            state: What earlier tokens have left.

        Returns:
            The mixed tokens, and what they leave to later ones.
        """
        del positions, keys
        precise = at_least_float32(x.dtype)
        decay = jax.nn.sigmoid(self.decay(x).astype(precise))
        change = (1 - decay) * self.value(x).astype(precise)
        after: State = {}
        if segment_ids is not None:
            ids = jnp.broadcast_to(segment_ids, x.shape[:2])
            before = jnp.concatenate([state["segment_id"][:, None], ids[:, :-1]], axis=1)
            decay = jnp.where((ids == before)[..., None], decay, jnp.zeros_like(decay))
            after["segment_id"] = ids[:, -1]
        kept, hidden = jax.lax.associative_scan(_follow, (decay, change), axis=1)
        hidden = hidden + kept * state["hidden"][:, None]
        after["hidden"] = hidden[:, -1]
        mixed = jax.nn.silu(self.gate(x)) * hidden.astype(x.dtype)
        return self.output(mixed), after


def _follow(first: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two steps `h -> a h + b` as one."""
    return first[0] * then[0], first[1] * then[0] + then[1]
