"""The programs of a model, traced for one microbatch."""

import dataclasses

import jax

from jaxpipe.runtime.ends import EmbedProgram, HeadProgram, trace_embed, trace_head
from jaxpipe.runtime.layer_program import LayerProgram, Policy, trace_layer
from jaxpipe.runtime.model import LayeredModel, Params, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePrograms:
    """Everything a device may have to run.

    Attributes:
        x: Shapes of what travels from stage to stage.
        embed: What the first stage starts with.
        layer: One block.
        head: What the last stage ends with.
    """

    x: PyTree
    embed: EmbedProgram
    layer: LayerProgram
    head: HeadProgram


def trace_programs(
    model: LayeredModel, params: Params, side: PyTree, valid: PyTree, policy: Policy | None
) -> StagePrograms:
    """Traces a model.

    Args:
        model: The model.
        params: Parameters or their shapes on one device: blocks `[num_chunks, max_layers, ...]`.
        side: `(batch, keys)` or their shapes, cut into microbatches: leaves
            `[num_microbatches, microbatch_size, ...]`.
        valid: Which examples are real, `[num_microbatches, microbatch_size]`.
        policy: What a block keeps for its backward.

    Raises:
        ValueError: If a block changes the structure, shape or dtype of its input.
    """
    layer, side, valid = _drop(params.blocks, 2), _drop(side, 1), _drop(valid, 1)
    outer = _drop(params.outer, 0)
    x = jax.eval_shape(model.embed, outer, *side)
    x = _drop(x, 0)
    check_block(model, layer, x, side)
    return StagePrograms(
        x=x,
        embed=trace_embed(model, outer, x, side),
        layer=trace_layer(model, layer, x, side, policy),
        head=trace_head(model, outer, x, side, valid),
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
