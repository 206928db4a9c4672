"""A microbatch cut into slices of consecutive tokens.

Tokens are the second dim: what a batch holds per token is `[batch_size, num_tokens, ...]`. A slice
takes its tokens from every such array, and all of every other one.

    8 tokens, lengths 3, 3, 2        0 1 2 | 3 4 5 | 6 7

Shapes are static, so every slice has programs of its own, which do the work of its tokens alone.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.runtime.model import LayeredModel, PyTree, SequentialModel

POSITIONS = "positions"
"""The entry of a batch with the tokens' positions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Consecutive tokens of a microbatch.

    Attributes:
        number: Which of the slices this is.
        start: Its first token.
        stop: The token behind its last one.
        is_last: Whether no slice follows.
    """

    number: int
    start: int
    stop: int
    is_last: bool

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return self.stop - self.start

    def take(self, batch: PyTree, num_tokens: int) -> PyTree:
        """The slice's part of a batch.

        Where the batch is a dict without positions, it gets those of its tokens in the whole
        sequence: `positions`, int32 `[batch_size, length]`.

        Args:
            batch: Leaves `[batch_size, ...]`.
            num_tokens: Tokens of the whole sequence.
        """
        taken = jax.tree.map(
            lambda leaf: leaf[:, self.start : self.stop] if _is_of(leaf, num_tokens) else leaf,
            batch,
        )
        if isinstance(batch, Mapping) and POSITIONS not in batch:
            batch_size = jax.tree.leaves(batch)[0].shape[0]
            places = jnp.arange(self.start, self.stop, dtype=jnp.int32)
            taken = {**taken, POSITIONS: jnp.broadcast_to(places, (batch_size, self.length))}
        return taken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slicing:
    """How the sequences of a pipeline are cut.

    Attributes:
        num_slices: How many slices.
        lengths: Tokens of each slice; None for slices as equal as can be.
    """

    num_slices: int
    lengths: tuple[int, ...] | None = None

    def cut(self, num_tokens: int) -> tuple[Slice, ...]:
        """The slices of a sequence of so many tokens."""
        return cut_tokens(num_tokens, self.num_slices, self.lengths)

    def count_tokens(self, x: PyTree) -> int:
        """The tokens of a sequence.

        Args:
            x: Shapes of what the embedding makes of whole sequences.

        Raises:
            ValueError: If its leaves have no second dim in common.
        """
        shapes = [leaf.shape for leaf in jax.tree.leaves(x)]
        found = {shape[1] if len(shape) > 1 else None for shape in shapes}
        if len(found) != 1 or None in found:
            raise ValueError(
                "token slices need activations with the tokens as their second dim, [batch_size, "
                f"tokens, ...]; the embedding makes {', '.join(str(list(each)) for each in shapes)}"
            )
        (num_tokens,) = found
        assert num_tokens is not None
        return num_tokens


def choose_slicing(slices: int | Sequence[int] | None) -> Slicing | None:
    """The slicing that a user asks for: a number of slices, or the length of each.

    Raises:
        TypeError, ValueError: If it is neither, or a number is below 1.
    """
    if slices is None:
        return None
    lengths = (
        tuple(slices) if isinstance(slices, Sequence) and not isinstance(slices, str) else None
    )
    numbers: tuple[Any, ...] = (slices,) if lengths is None else lengths
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
        raise TypeError(
            "slices must be a number of slices, such as 4, or the length of each, such as "
            f"[704, 688, 656]; found {slices!r}"
        )
    if not numbers or min(numbers) < 1:
        raise ValueError(
            f"every slice must have at least one token, and there must be one; found {slices!r}"
        )
    if lengths is None:
        return Slicing(num_slices=numbers[0])
    return Slicing(num_slices=len(lengths), lengths=lengths)


def check_has_state(model: LayeredModel | SequentialModel, num_slices: int) -> None:
    """Raises ValueError unless the blocks of a model can go on from a state."""
    if model.stateful is None:
        raise ValueError(
            f"cutting microbatches into {num_slices} slices needs blocks that go on from the state "
            "which earlier tokens have left, but these declare none. Give the block a method "
            "initial_state(x) and an argument `state`, so that it returns (y, state); a block "
            "whose tokens do not see each other has the state {}. If tokens see later ones, as in "
            "attention that is not causal, sequences can't be cut: use a schedule without slices"
        )


def cut_tokens(
    num_tokens: int, num_slices: int, lengths: Sequence[int] | None = None
) -> tuple[Slice, ...]:
    """The slices of a sequence.

    Args:
        num_tokens: Tokens of the sequence.
        num_slices: How many slices; without `lengths` as equal as can be, longer ones first.
        lengths: Tokens of each slice.

    Raises:
        ValueError: If the lengths do not sum to the number of tokens, or there are too few tokens.

    Example:
        >>> [piece.length for piece in cut_tokens(8, 3)]
        [3, 3, 2]
    """
    if lengths is None:
        if num_tokens < num_slices:
            raise ValueError(
                f"{num_tokens} tokens can't be cut into {num_slices} slices of at least one token; "
                f"use at most {num_tokens} slices"
            )
        least, more = divmod(num_tokens, num_slices)
        lengths = [least + (number < more) for number in range(num_slices)]
    if sum(lengths) != num_tokens:
        raise ValueError(
            f"the lengths of the slices must sum to the {num_tokens} tokens of a sequence, but "
            f"{' + '.join(map(str, lengths))} = {sum(lengths)}; make the last one "
            f"{max(1, lengths[-1] + num_tokens - sum(lengths))}, or leave the lengths out"
        )
    ends = list(itertools.accumulate(lengths))
    return tuple(
        Slice(number=number, start=stop - length, stop=stop, is_last=stop == num_tokens)
        for number, (length, stop) in enumerate(zip(lengths, ends, strict=True))
    )


def _is_of(leaf: jax.Array | jax.ShapeDtypeStruct, num_tokens: int) -> bool:
    """Whether an array of a batch has something for every token."""
    return len(leaf.shape) >= 2 and leaf.shape[1] == num_tokens
