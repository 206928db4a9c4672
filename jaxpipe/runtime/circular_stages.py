"""The stages of either kind of model, as ordinary functions that JAX can differentiate.

The circular pipeline (`jaxpipe.runtime.circular`) moves a value `x` through them, whose shapes are
the same behind every stage: what the blocks of a layered model map to itself, and of a sequential
model flat arrays that hold what crosses any border, and the outputs.
"""

import functools

import jax
import jax.numpy as jnp

from jaxpipe.runtime import buffers
from jaxpipe.runtime.flat_columns import FlatColumns
from jaxpipe.runtime.model import LayeredModel, Params, PyTree, SequentialModel
from jaxpipe.runtime.packing import Packing
from jaxpipe.runtime.programs import check_block
from jaxpipe.runtime.randomness import EMBED, part_keys
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.runtime.stage_program import Border


class LayeredStages:
    """The stages of equal blocks.

    Args:
        spec: The pipeline.
        model: Its model.
        params: Parameters of one device: blocks `[num_chunks, max_layers, ...]`.
        side: Shapes of `(batch, keys)` of a microbatch.

    Attributes:
        x: Shapes of what moves from stage to stage.
    """

    def __init__(
        self, spec: PipelineSpec, model: LayeredModel, params: Params, side: PyTree
    ) -> None:
        self.spec = spec
        self.model = model
        self.params = params
        self.x = jax.eval_shape(model.embed, params.outer, *side)
        layer = jax.eval_shape(lambda: buffers.read(params.blocks, 0, 0))
        check_block(model, layer, self.x, side)

    def enter(self, side: PyTree) -> PyTree:
        """What the first stage starts from."""
        batch, keys = side
        return self.model.embed(self.params.outer, batch, part_keys(keys, EMBED))

    def run(
        self, first_stage: int, position: jax.Array, num: int, x: PyTree, side: PyTree
    ) -> PyTree:
        """One of the `num` stages from `first_stage` on; `position` counts from there."""
        spec, layout = self.spec, self.spec.layout
        stage = first_stage + position
        first = jnp.array(layout.first_layers, jnp.int32)[stage]
        count = jnp.array(layout.layers_per_stage, jnp.int32)[stage]
        is_even = len(set(layout.layers_per_stage)) == 1
        batch, keys = side

        def block(params: PyTree, x: PyTree, number: jax.Array) -> PyTree:
            return self.model.block(params, x, batch, part_keys(keys, EMBED + 1 + number))

        if spec.remat.policy is not None:
            block = jax.checkpoint(block, policy=spec.remat.policy, prevent_cse=False)

        def layer(x: PyTree, operands: tuple[PyTree, jax.Array]) -> tuple[PyTree, None]:
            params, position = operands
            if is_even:
                return block(params, x, first + position), None
            y = jax.lax.cond(
                position < count, lambda x: block(params, x, first + position), lambda x: x, x
            )
            return y, None

        chunks = layout.placement.chunks[0]
        of_leg = set(chunks[first_stage:][:num])
        chunk = of_leg.pop() if len(of_leg) == 1 else jnp.array(chunks, jnp.int32)[stage]
        blocks = jax.tree.map(lambda leaf: leaf[chunk], self.params.blocks)
        return jax.lax.scan(layer, x, (blocks, jnp.arange(layout.max_layers, dtype=jnp.int32)))[0]

    def outputs(self, x: PyTree, side: PyTree) -> PyTree:
        """What the head makes of the last stage's result."""
        batch, keys = side
        keys = part_keys(keys, EMBED + 1 + self.model.num_layers)
        return self.model.head(self.params.outer, x, batch, keys)


class SequentialStages:
    """The stages of a sequential model; as those of `LayeredStages`."""

    def __init__(
        self,
        spec: PipelineSpec,
        model: SequentialModel,
        packing: Packing,
        params: Params,
        side: PyTree,
    ) -> None:
        self.spec = spec
        self.model = model
        self.packing = packing
        self.packed = [params.blocks[str(shape.dtype)] for shape in packing.columns.shapes]
        border: Border = ((), {})
        self.borders = [border]
        for stage in range(packing.num_stages):
            run = functools.partial(self._layers, stage, chunk=0)
            border = jax.eval_shape(run, border, side)
            self.borders.append(border)
        self.columns = FlatColumns.of([jax.tree.leaves(each) for each in self.borders])
        self.x = list(self.columns.shapes)

    def enter(self, side: PyTree) -> PyTree:
        """Nothing: the first layer takes its input from the batch."""
        return [jnp.zeros(shape.shape, shape.dtype) for shape in self.x]

    def run(
        self, first_stage: int, position: jax.Array, num: int, x: PyTree, side: PyTree
    ) -> PyTree:
        """One of the `num` stages from `first_stage` on; `position` counts from there."""

        def branch(stage: int, x: PyTree) -> PyTree:
            chunk = self.spec.layout.placement.chunks[0][stage]
            structure = jax.tree.structure(self.borders[stage])
            border = jax.tree.unflatten(structure, self.columns.read(x, stage))
            made = self._layers(stage, border, side, chunk=chunk)
            return self.columns.write(self.enter(side), jax.tree.leaves(made), stage + 1)

        branches = [functools.partial(branch, first_stage + number) for number in range(num)]
        return jax.lax.switch(position, branches, x)

    def outputs(self, x: PyTree, side: PyTree) -> PyTree:
        """What the last layer has made."""
        found = self.columns.read(x, len(self.borders) - 1)
        return jax.tree.unflatten(jax.tree.structure(self.borders[-1]), found)[0]

    def _layers(self, stage: int, border: Border, side: PyTree, *, chunk: int) -> Border:
        batch, keys = side
        for number in self.packing.layers_of(stage):
            one = range(number, number + 1)
            run = functools.partial(self.model.run, one)
            if self.spec.remat.policy is not None:
                run = jax.checkpoint(run, policy=self.spec.remat.policy, prevent_cse=False)
            params = self.packing.params_of(self.packed, stage, one, chunk)
            border = run(params, border, batch, keys)
        return border


def stages_of(spec: PipelineSpec, params: Params, side: PyTree) -> LayeredStages | SequentialStages:
    """The stages of a pipeline on one device, for shapes of `(batch, keys)` of a microbatch."""
    if isinstance(spec.model, SequentialModel):
        assert spec.packing is not None
        return SequentialStages(spec, spec.model, spec.packing, params, side)
    return LayeredStages(spec, spec.model, params, side)
