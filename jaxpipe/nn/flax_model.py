"""An ordinary NNX model taken apart into blocks and the rest, and put together again.

The model keeps its structure; only its parameters move. Blocks may be one module whose parameters
have a leading dim of layers, or a list of modules of equal structure, which are then stacked.
Everything that is no block is *outer*: embedding, head, and what they share.
"""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpipe.nn.by_name import call_by_name
from jaxpipe.nn.module_state import check_variables, differences, merge, shape_of
from jaxpipe.runtime.model import LayeredModel, Params, PyTree, StatefulBlock

Part = str | Callable
"""A part of a model: the path of an attribute, such as `"decoder.head"`, or a function."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlaxModel:
    """The structure of an NNX model, apart from its parameters. `take_apart` makes it.

    Attributes:
        num_layers: Number of blocks.
        whole: Structure of the whole model.
        whole_state: Shapes of its parameters.
        outer: Structure of the model without its blocks.
        outer_state: Shapes of its parameters.
        block: Structure of one block.
        block_state: Shapes of one block's parameters.
        blocks: Path of the attribute that holds the blocks.
        is_list: Whether that attribute is a list of modules.
    """

    num_layers: int
    whole: nnx.GraphDef
    whole_state: nnx.State
    outer: nnx.GraphDef
    outer_state: nnx.State
    block: nnx.GraphDef
    block_state: nnx.State
    blocks: str
    is_list: bool

    def parameters(self, model: nnx.Module) -> Params:
        """The parameters of a model of this structure, in layer order.

        Raises:
            ValueError: If the model has another structure or other shapes.
        """
        other = take_apart(model, self.blocks)
        problems = differences(self.whole_state, other.whole_state)
        if problems:
            raise ValueError(
                "the pipeline was made for a model of another shape: " + "; ".join(problems[:5])
            )
        return _parameters(model, self.blocks)

    def parameter_shapes(self) -> Params:
        """Shapes of the parameters, in layer order."""
        stacked = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.num_layers, *leaf.shape), leaf.dtype),
            nnx.to_pure_dict(self.block_state),
        )
        return Params(stacked, nnx.to_pure_dict(self.outer_state))

    def assemble(self, params: Params) -> nnx.Module:
        """The model with these parameters, which are in layer order."""
        blocks = params.blocks
        if self.is_list:
            blocks = {
                layer: jax.tree.map(operator.itemgetter(layer), blocks)
                for layer in range(self.num_layers)
            }
        pure = jax.tree.map(lambda leaf: leaf, params.outer)
        *parents, last = self.blocks.split(".")
        inner = pure
        for name in parents:
            inner = inner.setdefault(name, {})
        inner[last] = blocks
        return merge(self.whole, self.whole_state, pure)

    def functions(self, loss: Callable, embed: Part, head: Part) -> LayeredModel:
        """The model as pure functions of its parameters.

        Args:
            loss: `(outputs, ...) -> losses`, given entries of the batch by name.
            embed: The embedding, called with entries of the batch by name; a function gets the
                model without its blocks first.
            head: The head, called with the last block's output; a function gets the model without
                its blocks first.
        """

        def bind(part: Part, outer: PyTree, *inputs: PyTree) -> tuple[Callable, tuple]:
            model = merge(self.outer, self.outer_state, outer)
            if isinstance(part, str):
                return _attribute(model, part), inputs
            return part, (model, *inputs)

        def run_embed(outer: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
            part, inputs = bind(embed, outer)
            return call_by_name(part, "embed", inputs, batch, keys)

        def run_block(params: PyTree, x: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
            block = merge(self.block, self.block_state, params)
            return call_by_name(block, "a block", (x,), batch, keys)

        def run_head(outer: PyTree, x: PyTree, batch: PyTree, keys: jax.Array | None) -> PyTree:
            part, inputs = bind(head, outer, x)
            return call_by_name(part, "head", inputs, batch, keys)

        def initial_state(params: PyTree, x: PyTree, batch: PyTree) -> PyTree:
            block = merge(self.block, self.block_state, params)
            return call_by_name(block.initial_state, "initial_state", (x,), batch)

        def run_stateful_block(
            params: PyTree, x: PyTree, state: PyTree, batch: PyTree, keys: jax.Array | None
        ) -> tuple[PyTree, PyTree]:
            block = merge(self.block, self.block_state, params)
            with_state = functools.partial(block, state=state)
            return call_by_name(with_state, "a block", (x,), batch, keys)

        stateful = StatefulBlock(initial_state=initial_state, block=run_stateful_block)
        return LayeredModel(
            num_layers=self.num_layers,
            embed=run_embed,
            block=run_block,
            head=run_head,
            loss=lambda outputs, batch: call_by_name(loss, "loss", (outputs,), batch),
            stateful=stateful if self._has_state() else None,
        )

    def _has_state(self) -> bool:
        """Whether a block can go on from the state that earlier tokens have left."""
        block = nnx.merge(self.block, self.block_state)
        takes_state = "state" in inspect.signature(block).parameters
        return takes_state and callable(getattr(block, "initial_state", None))


def take_apart(model: nnx.Module, blocks: str = "blocks") -> FlaxModel:
    """The structure of a model, which may be real or abstract (from `nnx.eval_shape`).

    Args:
        model: Any NNX model whose only variables are `nnx.Param`s.
        blocks: Path of the attribute with the blocks: a stacked module, or a list of modules.

    Raises:
        TypeError, ValueError: If there is no such attribute, the blocks differ in structure, they
            share parameters, or the model holds other variables.
    """
    if not isinstance(model, nnx.Module):
        raise TypeError(f"model must be a flax.nnx.Module; found {type(model).__name__}")
    check_variables(model)
    found = _attribute(model, blocks)
    whole, whole_state = nnx.split(model)
    outer, outer_state = nnx.split(_without(model, blocks))
    modules = _as_list(found)
    if modules is None:
        block, stacked = nnx.split(found)
        num_layers = _count_layers(stacked, blocks)
        block_state = jax.tree.map(lambda leaf: shape_of(leaf, drop=1), stacked)
        num_blocks_leaves = len(jax.tree.leaves(stacked))
    else:
        block, block_state = _same_structure(modules, blocks)
        num_layers = len(modules)
        num_blocks_leaves = num_layers * len(jax.tree.leaves(block_state))
    num_leaves = num_blocks_leaves + len(jax.tree.leaves(outer_state))
    if num_leaves != len(jax.tree.leaves(whole_state)):
        raise ValueError(
            f"the blocks at {blocks!r} share parameters with each other or with the rest of the "
            "model: every block must own its parameters (embedding and head may share theirs)"
        )
    return FlaxModel(
        num_layers=num_layers,
        whole=whole,
        whole_state=jax.tree.map(shape_of, whole_state),
        outer=outer,
        outer_state=jax.tree.map(shape_of, outer_state),
        block=block,
        block_state=jax.tree.map(shape_of, block_state),
        blocks=blocks,
        is_list=modules is not None,
    )


def _parameters(model: nnx.Module, blocks: str) -> Params:
    found = _attribute(model, blocks)
    modules = _as_list(found)
    if modules is None:
        stacked = nnx.to_pure_dict(nnx.state(found))
    else:
        layers = [nnx.to_pure_dict(nnx.state(module)) for module in modules]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return Params(stacked, nnx.to_pure_dict(nnx.state(_without(model, blocks))))


def _attribute(model: nnx.Module, path: str) -> Any:
    """The attribute at a dotted path."""
    found: Any = model
    for name in path.split("."):
        if not hasattr(found, name):
            modules = [key for key, value in vars(found).items() if _is_part(value)]
            raise ValueError(
                f"{type(found).__name__} has no attribute {name!r} (looking for {path!r}); it has "
                f"{', '.join(modules) or 'no modules'}. Name the parts of the model with embed=, "
                "blocks= and head="
            )
        found = getattr(found, name)
    return found


def _is_part(value: Any) -> bool:
    return isinstance(value, nnx.Module | nnx.List | list | tuple)


def _without(model: nnx.Module, blocks: str) -> nnx.Module:
    """A copy of the model that lacks the blocks; arrays are shared."""
    copy = nnx.clone(model)
    *parents, last = blocks.split(".")
    delattr(_attribute(copy, ".".join(parents)) if parents else copy, last)
    return copy


def _as_list(blocks: Any) -> list[nnx.Module] | None:
    """The modules, if the blocks are a list of them."""
    if isinstance(blocks, nnx.List | list | tuple):
        return list(blocks)
    return None


def _count_layers(stacked: nnx.State, blocks: str) -> int:
    """The leading dim that all parameters of a stacked module share."""
    sizes = {
        jax.tree_util.keystr(path): leaf.shape[:1]
        for path, leaf in jax.tree_util.tree_leaves_with_path(stacked)
    }
    if len(set(sizes.values())) != 1 or () in sizes.values():
        found = ", ".join(f"{name}: {list(size)}" for name, size in list(sizes.items())[:5])
        raise ValueError(
            f"{blocks!r} must be a list of modules, or one module whose parameters all have the "
            f"layers as their first dim (as nnx.vmap makes it); found first dims {found or 'none'}"
        )
    ((size,),) = set(sizes.values())
    return size


def _same_structure(modules: list[nnx.Module], blocks: str) -> tuple[nnx.GraphDef, nnx.State]:
    """The structure and shapes that all modules of a list share."""
    if not modules:
        raise ValueError(f"{blocks!r} is an empty list: a model needs at least one block")
    splits = [nnx.split(module) for module in modules]
    first_structure, first_state = splits[0]
    problems = []
    for layer, (structure, state) in enumerate(splits):
        if found := differences(first_state, state):
            problems.append(f"block {layer} differs from block 0: {'; '.join(found[:3])}")
        elif structure != first_structure:
            problems.append(f"block {layer} differs from block 0 in its configuration")
    if problems:
        raise ValueError(
            "all blocks must have the same structure, parameter shapes and configuration. "
            + " ".join(problems[:5])
        )
    return first_structure, jax.tree.map(shape_of, first_state)
