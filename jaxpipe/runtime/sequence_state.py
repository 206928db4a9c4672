"""The state that a block carries from slice to slice.

A block whose tokens see earlier ones is a function `(x, state) -> (y, state)` of the tokens of one
slice. Its state before the first token says what kind each leaf is of:

- a leaf with no tokens yet, `[batch_size, 0, ...]`, that every slice makes longer by its own tokens
  *grows*: keys and values of attention. What was there before stays as it was;
- any other leaf is *replaced*: the state of a recurrence, or the keys of a sliding window.

What a slice adds is its *piece*: its own tokens of leaves that grow, the whole of those that are
replaced. The pieces are what the engine keeps, each as long as the rest of its slice, so that no
token is held twice:

    state before slice 2  =  piece 0 | piece 1           leaves that grow
                                       piece 1           leaves that are replaced
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.runtime.model import PyTree, StatefulBlock
from jaxpipe.runtime.slices import Slice

Pieces = Sequence[Sequence[Any]]
"""Leaves of the pieces of slices 0, 1, ...; None for those that a later piece has replaced."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceState:
    """The state of a block. `describe_state` makes it.

    Attributes:
        structure: The structure of the state.
        grows: For every leaf, whether it grows.
        pieces: For every slice, the shapes of its piece.
    """

    structure: jax.tree_util.PyTreeDef
    grows: tuple[bool, ...]
    pieces: tuple[tuple[jax.ShapeDtypeStruct, ...], ...]

    def past(self, number: int) -> list[list[jax.ShapeDtypeStruct | None]]:
        """The shapes of the pieces that the state before a slice is made of."""
        return [self.needed(earlier, number - 1) for earlier in range(number)]

    def needed(self, number: int, latest: int) -> list[jax.ShapeDtypeStruct | None]:
        """The shapes of a piece, where `latest` is the last piece that is there."""
        return [
            shape if grows or number == latest else None
            for shape, grows in zip(self.pieces[number], self.grows, strict=True)
        ]

    def before(self, past: Pieces, initial: list) -> PyTree:
        """The state before a slice.

        Args:
            past: Pieces of all earlier slices.
            initial: Leaves of the state before the first token.
        """
        leaves = [
            (whole if grows else past[-1][place]) if past else initial[place]
            for place, (grows, whole) in enumerate(zip(self.grows, self.whole(past), strict=True))
        ]
        return self.structure.unflatten(leaves)

    def whole(self, pieces: Pieces) -> list[jax.Array | None]:
        """The leaves that grow, from the pieces so far; None for the others."""
        return [
            jnp.concatenate([piece[place] for piece in pieces], axis=1)
            if grows and pieces
            else None
            for place, grows in enumerate(self.grows)
        ]

    def piece(self, after: list, piece: Slice) -> list:
        """What a slice adds.

        Args:
            after: Leaves of the state behind it.
            piece: Which slice this is.
        """
        return [
            leaf[:, piece.start : piece.stop] if grows else leaf
            for leaf, grows in zip(after, self.grows, strict=True)
        ]


def describe_state(
    stateful: StatefulBlock,
    params: PyTree,
    inputs: Sequence[PyTree],
    sides: Sequence[PyTree],
    slices: Sequence[Slice],
) -> SequenceState:
    """The state of a block, from shapes.

    Args:
        stateful: The block.
        params: Shapes of one block's parameters.
        inputs: For every slice, shapes of a block's input.
        sides: For every slice, shapes of `(batch, keys)`.
        slices: The slices.

    Raises:
        ValueError: If a block changes the structure, dtypes or batch dims of its state.
    """
    batch, _ = sides[0]
    state = jax.eval_shape(stateful.initial_state, params, inputs[0], batch)
    states = [state]
    for x, side in zip(inputs, sides, strict=True):
        _, state = jax.eval_shape(stateful.block, params, x, state, *side)
        _check_same_kind(states[0], state)
        states.append(state)
    leaves = [jax.tree.leaves(each) for each in states]
    ends = [0, *(piece.stop for piece in slices)]
    grows = tuple(
        all(
            len(leaf.shape) >= 2 and leaf.shape[1] == end
            for leaf, end in zip(versions, ends, strict=True)
        )
        for versions in zip(*leaves, strict=True)
    )
    pieces = tuple(
        tuple(
            jax.ShapeDtypeStruct(
                (leaf.shape[0], piece.length, *leaf.shape[2:]) if is_growing else leaf.shape,
                leaf.dtype,
            )
            for leaf, is_growing in zip(after, grows, strict=True)
        )
        for after, piece in zip(leaves[1:], slices, strict=True)
    )
    return SequenceState(structure=jax.tree.structure(states[0]), grows=grows, pieces=pieces)


def _check_same_kind(before: PyTree, after: PyTree) -> None:
    """Raises ValueError unless a state has the structure, dtypes and ranks of the first one."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise ValueError(
            "a block must return a state like that of initial_state, since the next slice goes on "
            f"from it: initial_state gives {jax.tree.structure(before)}, the block returns "
            f"{jax.tree.structure(after)}"
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    differences = [
        f"state{path} {old.dtype}{list(old.shape)} becomes {new.dtype}{list(new.shape)}"
        for path, old, new in zip(
            paths, jax.tree.leaves(before), jax.tree.leaves(after), strict=True
        )
        if old.dtype != new.dtype or len(old.shape) != len(new.shape)
    ]
    if differences:
        raise ValueError(
            "a block must keep the dtypes and numbers of dims of its state: "
            f"{'; '.join(differences)}. Cast in initial_state, or in the block"
        )
