"""The programs of a model, traced for one microbatch, or for every slice of one."""

import dataclasses
from collections.abc import Sequence

import jax

from jaxpipe.runtime.columns import Columns, larger
from jaxpipe.runtime.differentiable import split
from jaxpipe.runtime.ends import EmbedProgram, HeadProgram, trace_embed, trace_head
from jaxpipe.runtime.layer_program import LayerProgram, Policy, trace_layer
from jaxpipe.runtime.model import LayeredModel, Params, PyTree, SequentialModel
from jaxpipe.runtime.sequence_state import SequenceState, describe_state
from jaxpipe.runtime.slices import Slice, Slicing
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.runtime.stage_program import SequentialPrograms, trace_sequential


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicePrograms:
    """Everything a device may have to run for a microbatch, or for one slice of it.

    Attributes:
        piece: Which slice; None where microbatches are whole.
        x: Shapes of what travels from stage to stage.
        embed: What the first stage starts with.
        layer: One block.
        head: What the last stage ends with.
    """

    piece: Slice | None
    x: PyTree
    embed: EmbedProgram
    layer: LayerProgram
    head: HeadProgram


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePrograms:
    """Everything a device may have to run.

    Attributes:
        slices: The programs of every slice; one entry where microbatches are whole.
        num_tokens: Tokens of a sequence, if microbatches come in slices.
        state: What a block carries from slice to slice, likewise.
    """

    slices: tuple[SlicePrograms, ...]
    num_tokens: int | None = None
    state: SequenceState | None = None

    @property
    def layer(self) -> LayerProgram:
        """The block on the first slice: gradients reach the same parameters in all of them."""
        return self.slices[0].layer

    @property
    def head(self) -> HeadProgram:
        """The head on the first slice, likewise."""
        return self.slices[0].head

    @property
    def x(self) -> PyTree:
        """The least shapes that hold what travels from stage to stage, of any slice."""
        return _largest([each.x for each in self.slices])

    @property
    def gradient(self) -> list[jax.ShapeDtypeStruct]:
        """Likewise for the gradient of that."""
        return split(self.x)[0]

    @property
    def reached(self) -> tuple[bool, ...]:
        """For every leaf of the block parameters, whether a gradient reaches it."""
        return self.layer.reached

    @property
    def slice_lengths(self) -> tuple[int, ...]:
        """Tokens of each slice; none where microbatches are whole."""
        return tuple(each.piece.length for each in self.slices if each.piece)

    def padding(self, *, is_split: bool) -> dict[str, float]:
        """Equal layers leave no room but that of whole layers."""
        return {}

    @property
    def piece(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The least shapes that hold the piece of state of any slice."""
        return tuple(_largest([list(each) for each in self.state.pieces])) if self.state else ()

    @property
    def piece_gradient(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Likewise the gradient of a piece; that of the last one is never kept."""
        if self.state is None:
            return ()
        return tuple(_largest([split(list(each))[0] for each in self.state.pieces[:-1]]))

    @property
    def whole(self) -> tuple[str, ...]:
        """The primitives that could not be cut where backwards are split."""
        return tuple(name for each in self.slices for name in each.layer.backward_split.whole)

    def stash_columns(self, *, is_split: bool) -> tuple[Columns, Columns]:
        """Where the stashes go: what waits for BW or B, and what waits for W."""
        parts = [
            each.layer.part_stash(list(each.layer.stash), is_split=is_split) for each in self.slices
        ]
        return Columns.of([one for one, _ in parts]), Columns.of([other for _, other in parts])

    def kept_columns(self, *, is_split: bool) -> Columns:
        """Where goes what B leaves for W."""
        return Columns.of(
            [each.layer.backward_split.kept if is_split else () for each in self.slices]
        )


Programs = StagePrograms | SequentialPrograms
"""What a device may have to run, of either kind of model."""


def _largest(trees: Sequence[PyTree]) -> PyTree:
    """The least shapes that hold all of these, which have one structure."""

    def leaf(first: jax.ShapeDtypeStruct, *others: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        for other in others:
            first = larger(first, other)
        return first

    return jax.tree.map(leaf, *trees)


def trace_programs(spec: PipelineSpec, params: Params, side: PyTree, valid: PyTree) -> Programs:
    """Traces the model of a pipeline.

    Args:
        spec: The pipeline.
        params: Parameters or their shapes on one device: blocks `[num_chunks, max_layers, ...]`.
        side: `(batch, keys)` or their shapes, cut into microbatches: leaves
            `[num_microbatches, microbatch_size, ...]`.
        valid: Which examples are real, `[num_microbatches, microbatch_size]`.

    Raises:
        ValueError: If a block changes the structure, shape or dtype of its input, or the model
            can't be cut into these slices.
    """
    model, policy = spec.model, spec.remat.policy
    if isinstance(model, SequentialModel):
        assert spec.packing is not None
        return trace_sequential(
            model, spec.packing, _drop(params, 0), _drop(side, 1), _drop(valid, 1), policy
        )
    return _trace_layered(model, params, side, valid, policy, spec.slicing)


def _trace_layered(
    model: LayeredModel,
    params: Params,
    side: PyTree,
    valid: PyTree,
    policy: Policy | None,
    slicing: Slicing | None,
) -> StagePrograms:
    """Traces a model of equal blocks."""
    layer, side, valid = _drop(params.blocks, 2), _drop(side, 1), _drop(valid, 1)
    outer = _drop(params.outer, 0)
    x = _drop(jax.eval_shape(model.embed, outer, *side), 0)
    check_block(model, layer, x, side)
    if slicing is None or model.stateful is None:
        programs = SlicePrograms(
            piece=None,
            x=x,
            embed=trace_embed(model, outer, x, side),
            layer=trace_layer(model, layer, x, side, policy),
            head=trace_head(model, outer, x, side, valid),
        )
        return StagePrograms(slices=(programs,))
    num_tokens = slicing.count_tokens(x)
    slices = slicing.cut(num_tokens)
    batch, keys = side
    sides = [
        (_drop(jax.eval_shape(lambda b, p=piece: p.take(b, num_tokens), batch), 0), keys)
        for piece in slices
    ]
    inputs = [_drop(jax.eval_shape(model.embed, outer, *each), 0) for each in sides]
    for piece, found in zip(slices, inputs, strict=True):
        _check_embedding(x, found, piece)
    state = describe_state(model.stateful, layer, inputs, sides, slices)
    found = [
        SlicePrograms(
            piece=piece,
            x=x,
            embed=trace_embed(model, outer, x, side),
            layer=trace_layer(model, layer, x, side, policy, piece=piece, state=state),
            head=trace_head(model, outer, x, side, valid, num_tokens=piece.length),
        )
        for piece, x, side in zip(slices, inputs, sides, strict=True)
    ]
    return StagePrograms(slices=_reach_alike(found), num_tokens=num_tokens, state=state)


def _reach_alike(slices: list[SlicePrograms]) -> tuple[SlicePrograms, ...]:
    """The same programs, each with gradients for all parameters that any of them reaches.

    The first slice has no state before it, so fewer of its parameters may matter.
    """

    def reached(part: str) -> tuple[bool, ...]:
        found = [getattr(each, part).reached for each in slices]
        return tuple(any(flags) for flags in zip(*found, strict=True))

    parts = {part: reached(part) for part in ("embed", "layer", "head")}
    return tuple(
        dataclasses.replace(
            each,
            **{
                part: dataclasses.replace(getattr(each, part), reached=flags)
                for part, flags in parts.items()
            },
        )
        for each in slices
    )


def _check_embedding(whole: PyTree, found: PyTree, piece: Slice) -> None:
    """Raises ValueError unless a slice of the batch is embedded as a slice of the whole."""
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (leaf.shape[0], piece.length, *leaf.shape[2:]), leaf.dtype
        ),
        whole,
    )
    if jax.tree.structure(wanted) != jax.tree.structure(found) or jax.tree.leaves(
        wanted
    ) != jax.tree.leaves(found):
        raise ValueError(
            "token slices need an embedding that gives something for every token it is given, "
            "[batch_size, tokens, ...]; from tokens "
            f"{piece.start} to {piece.stop} it should make {jax.tree.leaves(wanted)}, but makes "
            f"{jax.tree.leaves(found)}"
        )


def check_block(model: LayeredModel, layer: PyTree, x: PyTree, side: PyTree) -> None:
    """Raises ValueError unless a block maps `x` to the same structure, shapes and dtypes."""
    y = jax.eval_shape(model.block, layer, x, *side)
    if jax.tree.structure(x) != jax.tree.structure(y):
        raise ValueError(
            "a block must return what it takes, since the next stage takes it again: the embedding "
            f"gives {jax.tree.structure(x)}, the block returns {jax.tree.structure(y)}"
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    differences = [
        f"x{path} {before.dtype}{list(before.shape)} becomes {after.dtype}{list(after.shape)}"
        for path, before, after in zip(paths, jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
        if (before.shape, before.dtype) != (after.shape, after.dtype)
    ]
    if differences:
        raise ValueError(
            "a block must keep the shapes and dtypes of its input, since the next stage takes it "
            f"again: {'; '.join(differences)}. Cast to the block's dtype in the embedding, or set "
            "the model's and the pipeline's compute dtype to the same."
        )


def _drop(tree: PyTree, num_dims: int) -> PyTree:
    """The shapes of a tree without their leading dims."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[num_dims:], leaf.dtype), tree)
