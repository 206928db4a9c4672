"""Small Flax models of every form that can become a pipeline."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

WIDTH, VOCABULARY = 4, 7


class Embed(nnx.Module):
    """A table."""

    def __init__(self, rngs: nnx.Rngs, dtype: str = "float32") -> None:
        self.table = nnx.Param(jax.random.normal(rngs.params(), (VOCABULARY, WIDTH), dtype))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.table[...][tokens]


class Block(nnx.Module):
    """A residual layer."""

    def __init__(
        self, rngs: nnx.Rngs, dtype: str = "float32", width: int = WIDTH, scale: float = 1.0
    ) -> None:
        self.linear = nnx.Linear(width, width, rngs=rngs, param_dtype=dtype, dtype=dtype)
        self.scale = scale

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.scale * jnp.tanh(self.linear(x))


class Head(nnx.Module):
    """Tied where it gets a table."""

    def __init__(
        self, rngs: nnx.Rngs, table: nnx.Param | None = None, dtype: str = "float32"
    ) -> None:
        self.gain = nnx.Param(jnp.ones(WIDTH, dtype))
        shape = (VOCABULARY, WIDTH)
        self.table = table or nnx.Param(jax.random.normal(rngs.params(), shape, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        return (x * self.gain[...]) @ self.table[...].T


class Model(nnx.Module):
    """A language model of four or so blocks.

    Args:
        num_layers: How many.
        is_stacked: One module with a leading dim of layers, or a list.
        is_tied: Whether the head reads the embedding's table.
        dtype: Of parameters and computation.
    """

    def __init__(
        self,
        num_layers: int = 5,
        *,
        is_stacked: bool = False,
        is_tied: bool = True,
        dtype: str = "float32",
        seed: int = 0,
    ) -> None:
        rngs = nnx.Rngs(seed)
        self.embed = Embed(rngs, dtype)
        if is_stacked:
            keys = jax.random.split(rngs.params(), num_layers)
            self.blocks = nnx.vmap(lambda key: Block(nnx.Rngs(params=key), dtype))(keys)
        else:
            self.blocks = nnx.List([Block(rngs, dtype) for _ in range(num_layers)])
        self.head = Head(rngs, self.embed.table if is_tied else None, dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        if isinstance(self.blocks, nnx.List):
            for block in self.blocks:
                x = block(x)
        else:
            structure, weights = nnx.split(self.blocks)

            def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
                return nnx.merge(structure, weights)(x), None

            x, _ = jax.lax.scan(layer, x, weights)
        return self.head(x)


class Nested(nnx.Module):
    """The same model, one level down, under other names."""

    def __init__(self, **options: Any) -> None:
        self.decoder = Model(**options)


def loss(logits: jax.Array, *, targets: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(scores, targets[..., None], -1)[..., 0]


def make_batch(num_examples: int = 6, seed: int = 0) -> dict[str, jax.Array]:
    tokens, targets = jax.random.randint(
        jax.random.key(seed), (2, num_examples, 3), 0, VOCABULARY, jnp.int32
    )
    return {"tokens": tokens, "targets": targets}
