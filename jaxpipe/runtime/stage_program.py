"""The stages of a sequential model as programs: chains of unlike layers, with skips past some.

A layer is traced (`jaxpipe.runtime.layer_program`) for the shapes that reach it, and together with
those without parameters before it: traced apart, an activation function would keep what it reads or
makes for its backward, and the layer behind it the same values once more.

What crosses the border between two stages is the output of the layer before it, and the skips under
way: those that were stashed before and are popped behind. A skip between layers of one stage stays
where it is.

The first layer gets its input from the batch, which every device has: nothing is sent to the first
stage, nothing is kept for its recomputation, and no gradient is computed that nobody wants.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax

from jaxpipe.runtime.differentiable import has_gradient, split
from jaxpipe.runtime.ends import HeadProgram, trace_head
from jaxpipe.runtime.flat_columns import FlatColumns
from jaxpipe.runtime.layer_program import LayerProgram, Policy, trace_layer
from jaxpipe.runtime.model import Layer, Params, PyTree, SequentialModel
from jaxpipe.runtime.packing import Packing

Border = tuple[PyTree, dict[str, PyTree]]
"""What crosses a border: `x`, and the skips under way."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """Layers that are traced together, at their place.

    Attributes:
        numbers: Their numbers in the model.
        layer: All of them as one layer, whose parameters are a tuple.
        program: What was traced.
        x: Shapes of the input; of the first unit of all that is ().
        popped: Shapes of the skips that it takes.
        stashed: Shapes of the skips that it leaves.
    """

    numbers: range
    layer: Layer
    program: LayerProgram
    x: PyTree
    popped: dict[str, PyTree]
    stashed: dict[str, PyTree]


UnitParams = Callable[[Unit], PyTree]
"""The parameters of a unit."""

Back = Callable[[Unit, list[jax.Array]], list[jax.Array]]
"""From the gradient of a unit's output to that of its input; it deals with the weights, too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageProgram:
    """The layers of one stage.

    Attributes:
        number: Which stage.
        units: Its layers.
        before: Shapes of what reaches it; of the first stage that is nothing.
        after: Shapes of what it makes: behind the last stage, the outputs and no skips.
    """

    number: int
    units: tuple[Unit, ...]
    before: Border
    after: Border

    def forward(
        self, params: UnitParams, border: Border, side: PyTree, *, keeps: bool
    ) -> tuple[Border, list[list[jax.Array]]]:
        """What the stage makes, and if it `keeps` them, the stash of every unit."""
        x, skips = border
        skips, stashes = dict(skips), []
        for each in self.units:
            popped = {name: skips.pop(name) for name in each.layer.pops}
            operands = (params(each), (x, popped), side)
            if keeps:
                (x, stashed), _, stash = each.program.forward(*operands)
                stashes.append(stash)
            else:
                (x, stashed), _ = each.program.output(*operands)
            skips.update(stashed)
        return (x, skips), stashes

    def backward(self, gradient: list[jax.Array], back: Back) -> list[jax.Array]:
        """The gradients of what reached the stage, from those of what it made.

        Args:
            gradient: Of the leaves of `after` that have one.
            back: Runs the backward of one unit.
        """
        of_x, of_skips = _cut(self.after, gradient)
        for each in reversed(self.units):
            of_stashed = [leaf for name in sorted(each.stashed) for leaf in of_skips.pop(name)]
            found = back(each, [*of_x, *of_stashed])
            of_x, of_popped = _cut((each.x, each.popped), found)
            of_skips.update(of_popped)
        return [*of_x, *(leaf for name in sorted(of_skips) for leaf in of_skips[name])]

    def stashes(self, *, is_split: bool) -> tuple[list, list]:
        """Shapes of what waits for BW or B, and of what waits for W, of all units."""
        parts = [
            each.program.part_stash(list(each.program.stash), is_split=is_split)
            for each in self.units
        ]
        return _flatten(one for one, _ in parts), _flatten(other for _, other in parts)

    @functools.cached_property
    def kept(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what B leaves for W, of all units."""
        return _flatten(each.program.backward_split.kept for each in self.units)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequentialPrograms:
    """Everything a device may have to run of a sequential model.

    Attributes:
        stages: The programs of every stage.
        head: The loss.
        packing: Where parameters lie.
    """

    stages: tuple[StageProgram, ...]
    head: HeadProgram
    packing: Packing

    @functools.cached_property
    def activations(self) -> FlatColumns:
        """Where what reaches a stage lies in a message, for every stage."""
        return FlatColumns.of([jax.tree.leaves(stage.before) for stage in self.stages])

    @functools.cached_property
    def gradients(self) -> FlatColumns:
        """Where the gradients of what a stage makes lie in a message, for every stage."""
        return FlatColumns.of([split(stage.after)[0] for stage in self.stages])

    @property
    def x(self) -> PyTree:
        """The shapes of a message with activations."""
        return list(self.activations.shapes)

    @property
    def gradient(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes of a message with gradients, or of a slot of the loss's."""
        return list(self.gradients.shapes)

    @property
    def piece(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """There is no state."""
        return ()

    @property
    def piece_gradient(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """There is no state."""
        return ()

    @property
    def slice_lengths(self) -> tuple[int, ...]:
        """Microbatches come whole."""
        return ()

    @property
    def reached(self) -> tuple[bool, ...]:
        """Of the flat parameter arrays, all have sums of gradients."""
        return (True,) * len(self.packing.columns.shapes)

    @property
    def whole(self) -> tuple[str, ...]:
        """The primitives that could not be cut where backwards are split."""
        units = (each for stage in self.stages for each in stage.units)
        return tuple(name for each in units for name in each.program.backward_split.whole)

    def padding(self, *, is_split: bool) -> dict[str, float]:
        """The share of what all devices have room for that an average stage leaves empty."""
        stash, weight_stash = self.stash_columns(is_split=is_split)
        found = {
            "parameters": self.packing.columns,
            "messages": self.activations,
            "gradients": self.gradients,
            "stashes": stash,
            "stashes for W": weight_stash,
            "kept for W": self.kept_columns(is_split=is_split),
        }
        return {name: columns.padding for name, columns in found.items() if columns.shapes}

    def stash_columns(self, *, is_split: bool) -> tuple[FlatColumns, FlatColumns]:
        """Where the stashes go: what waits for BW or B, and what waits for W."""
        parts = [stage.stashes(is_split=is_split) for stage in self.stages]
        return (
            FlatColumns.of([one for one, _ in parts]),
            FlatColumns.of([other for _, other in parts]),
        )

    def kept_columns(self, *, is_split: bool) -> FlatColumns:
        """Where goes what B leaves for W."""
        return FlatColumns.of([stage.kept if is_split else [] for stage in self.stages])


def trace_sequential(
    model: SequentialModel,
    packing: Packing,
    params: Params,
    side: PyTree,
    valid: jax.ShapeDtypeStruct,
    policy: Policy | None,
) -> SequentialPrograms:
    """Traces a model for one microbatch.

    Args:
        model: The model.
        packing: Which layers each stage has.
        params: Parameters or their shapes on one device, whose dtypes are those to compute in:
            blocks `[num_chunks, 1, width]`.
        side: Shapes of `(batch, keys)` of one microbatch.
        valid: Which examples are real, `[microbatch_size]`.
        policy: What a layer keeps for its backward.
    """
    packed = [params.blocks[str(shape.dtype)] for shape in packing.columns.shapes]
    x: PyTree = ()
    skips: dict[str, PyTree] = {}
    stages = []
    for stage in range(packing.num_stages):
        before, units = (x, dict(skips)), []
        for numbers in _units(packing, stage):
            layer = _as_one(model, numbers)
            popped = {name: skips.pop(name) for name in layer.pops}
            shapes = jax.eval_shape(
                functools.partial(packing.params_of, stage=stage, layers=numbers, chunk=0), packed
            )
            program = trace_layer(layer, shapes, (x, popped), side, policy)
            y, stashed = program.made
            units.append(
                Unit(
                    numbers=numbers,
                    layer=layer,
                    program=program,
                    x=x,
                    popped=popped,
                    stashed=stashed,
                )
            )
            x = y
            skips.update(stashed)
        stages.append(
            StageProgram(number=stage, units=tuple(units), before=before, after=(x, dict(skips)))
        )
    return SequentialPrograms(
        stages=tuple(stages),
        head=trace_head(model, params.outer, x, side, valid),
        packing=packing,
    )


def _units(packing: Packing, stage: int) -> Iterator[range]:
    """The layers of a stage, each with those without parameters before it."""
    numbers = packing.layers_of(stage)
    first = numbers.start
    for number in numbers:
        if len(packing.leaves_of(number)) or number == numbers[-1]:
            yield range(first, number + 1)
            first = number + 1


def _as_one(model: SequentialModel, numbers: range) -> Layer:
    """Some layers of a model as one, which takes the keys of the examples."""
    layers = [model.layers[number] for number in numbers]
    stashed = {name for layer in layers for name in layer.stashes}
    popped = {name for layer in layers for name in layer.pops}

    def block(
        params: PyTree, inputs: tuple[PyTree, dict], batch: PyTree, keys: jax.Array | None
    ) -> tuple[PyTree, dict[str, PyTree]]:
        return model.run(numbers, params, inputs, batch, keys)

    return Layer(
        name=" + ".join(layer.name for layer in layers),
        params=tuple(layer.params for layer in layers),
        block=block,
        pops=tuple(sorted(popped - stashed)),
        stashes=tuple(sorted(stashed - popped)),
    )


def _cut(border: Border, gradient: list[jax.Array]) -> tuple[list, dict[str, list]]:
    """The gradients of `x` and of each skip, from those of all leaves that have one."""
    x, skips = border
    rest = iter(gradient)

    def take(tree: PyTree) -> list:
        return [next(rest) for leaf in jax.tree.leaves(tree) if has_gradient(leaf)]

    of_x = take(x)
    return of_x, {name: take(skips[name]) for name in sorted(skips)}


def _flatten(parts: Iterator) -> list:
    return [value for part in parts for value in part]
