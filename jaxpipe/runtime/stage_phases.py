"""The phases of one stage of a sequential model.

The layers are unlike, so they stand one behind the other in the program, each with a stash of its
own in the slot of the stage. In every other respect the phases are those of a loop over equal
layers (`jaxpipe.runtime.layer_phases`), and the rows of a table say the same to both.
"""

import dataclasses

import jax

from jaxpipe.lower.table import BackwardPass, Column, Forward, TableSizes
from jaxpipe.lower.wires import has_turns
from jaxpipe.runtime import buffers
from jaxpipe.runtime.conditional import Tie
from jaxpipe.runtime.loop_state import LoopState
from jaxpipe.runtime.microbatch import Microbatches
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.phase_parts import Rings, apart, choose, run_head, sum_place
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.runtime.stage_program import Border, SequentialPrograms, Unit, UnitParams


class StagePhases:
    """What one device does in a tick for one of the stages.

    Args:
        spec: The pipeline.
        sizes: Sizes of the table.
        programs: The programs of the model.
        number: Which stage.
        rings: Where the values of all stages go.
        params: Parameters to compute with: blocks `[chunks of all paths, 1, width]`.
        micro: This replica's microbatches.
        keys: A key for each example, shaped as the microbatches, or None.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        sizes: TableSizes,
        programs: SequentialPrograms,
        number: int,
        rings: Rings,
        params: Params,
        micro: Microbatches,
        keys: jax.Array | None,
    ) -> None:
        self.spec = spec
        self.sizes = sizes
        self.programs = programs
        self.packing = programs.packing
        self.stage = programs.stages[number]
        self.number = number
        self.is_last = number == spec.num_stages - 1
        self.rings = rings
        self.packed = [params.blocks[str(shape.dtype)] for shape in self.packing.columns.shapes]
        self.outer = params.outer
        self.micro = micro
        self.keys = keys
        self.has_turns = has_turns(spec.layout.placement)

    def forward(self, state: LoopState, row: jax.Array) -> LoopState:
        """F, and the loss behind it on the last stage."""

        def keep(state: LoopState, row: jax.Array) -> LoopState:
            border, side = self._border(state, row), self._side(row, Column.FORWARD_MICROBATCH)
            params = self._params(row[Column.FORWARD_CHUNK])
            made, stashes = self.stage.forward(params, border, side, keeps=True)
            slots = row[Column.FORWARD_STASH], row[Column.FORWARD_WEIGHT_STASH]
            return self._leave(self._write_stashes(state, stashes, *slots), row, made, side)

        def leave(state: LoopState, row: jax.Array) -> LoopState:
            border, side = self._border(state, row), self._side(row, Column.FORWARD_MICROBATCH)
            if self.sizes.recomputes:
                inputs = self.programs.activations.write(
                    state.inputs, jax.tree.leaves(border), self.number, row[Column.FORWARD_INPUT]
                )
                state = dataclasses.replace(state, inputs=inputs)
            params = self._params(row[Column.FORWARD_CHUNK])
            made, _ = self.stage.forward(params, border, side, keeps=False)
            return self._leave(state, row, made, side)

        bodies = {Forward.KEEPING: keep, Forward.PASSING: leave}
        return choose(self.sizes, bodies, row, Column.FORWARD, state)

    def recompute(self, state: LoopState, row: jax.Array) -> LoopState:
        """R: what F would have left."""
        found = self.programs.activations.read(
            state.inputs, self.number, row[Column.RECOMPUTE_INPUT]
        )
        border = jax.tree.unflatten(jax.tree.structure(self.stage.before), found)
        side = self._side(row, Column.RECOMPUTE_MICROBATCH)
        params = self._params(row[Column.RECOMPUTE_CHUNK])
        _, stashes = self.stage.forward(params, border, side, keeps=True)
        slots = row[Column.RECOMPUTE_STASH], row[Column.RECOMPUTE_WEIGHT_STASH]
        return self._write_stashes(state, stashes, *slots)

    def backward(self, state: LoopState, row: jax.Array) -> LoopState:
        """BW or B."""
        bodies = {
            BackwardPass.FULL: self._part_b if self.sizes.is_split else self._whole_backward,
            BackwardPass.INPUT: self._input_alone,
        }
        return choose(self.sizes, bodies, row, Column.BACKWARD, state)

    def weight(self, state: LoopState, row: jax.Array) -> LoopState:
        """W: from what B and the forward have left for it."""
        side, chunk = self._side(row, Column.WEIGHT_MICROBATCH), row[Column.WEIGHT_CHUNK]
        waited = self.rings.weight_stash.read(
            state.weight_stashes, self.number, row[Column.WEIGHT_STASH], 0
        )
        kept = self.rings.kept.read(state.kept, self.number, row[Column.WEIGHT_KEPT], 0)
        sums, params = state.block_gradients, self._params(chunk)
        for each in self.stage.units:
            program = each.program
            _, for_weights = program.part_stash(list(program.stash), is_split=True)
            stash = program.join_stash(None, _take(waited, for_weights), is_split=True)
            of_unit = _take(kept, program.backward_split.kept)
            new = program.backward_weight(params(each), stash, side, of_unit)
            sums = self._add(sums, each, new, chunk)
        return dataclasses.replace(state, block_gradients=sums)

    def _whole_backward(self, state: LoopState, row: jax.Array) -> LoopState:
        """BW: of each unit B, and W at once."""
        stashes, params = self._read_stashes(state, row), self._params(row[Column.BACKWARD_CHUNK])
        side, chunk = self._side(row, Column.BACKWARD_MICROBATCH), row[Column.BACKWARD_CHUNK]
        sums = state.block_gradients

        def back(each: Unit, gradient: list) -> list:
            nonlocal sums
            stash = stashes[each.numbers]
            of_x, kept = each.program.backward_input(params(each), stash, side, gradient)

            def add(tie: Tie, sums: list) -> list:
                new = each.program.backward_weight(params(each), stash, side, tie(kept))
                return self._add(sums, each, new, chunk)

            sums = apart(self.spec, row, add, sums) if each.program.reached else sums
            return of_x

        found = self.stage.backward(self._gradient(state, row), back)
        return self._send(dataclasses.replace(state, block_gradients=sums), row, found)

    def _part_b(self, state: LoopState, row: jax.Array) -> LoopState:
        """B, which W will follow."""
        stashes, params = self._read_stashes(state, row), self._params(row[Column.BACKWARD_CHUNK])
        side = self._side(row, Column.BACKWARD_MICROBATCH)
        kept: dict[range, list] = {}

        def back(each: Unit, gradient: list) -> list:
            of_x, kept[each.numbers] = each.program.backward_input(
                params(each), stashes[each.numbers], side, gradient
            )
            return of_x

        found = self.stage.backward(self._gradient(state, row), back)
        values = [value for each in self.stage.units for value in kept[each.numbers]]
        rings = self.rings.kept.write(state.kept, values, self.number, row[Column.BACKWARD_KEPT], 0)
        return self._send(dataclasses.replace(state, kept=rings), row, found)

    def _input_alone(self, state: LoopState, row: jax.Array) -> LoopState:
        """B of a stage whose weights are frozen."""
        stashes, params = self._read_stashes(state, row), self._params(row[Column.BACKWARD_CHUNK])
        side = self._side(row, Column.BACKWARD_MICROBATCH)

        def back(each: Unit, gradient: list) -> list:
            return each.program.input_gradient(params(each), stashes[each.numbers], side, gradient)

        found = self.stage.backward(self._gradient(state, row), back)
        return self._send(state, row, found)

    def _border(self, state: LoopState, row: jax.Array) -> Border:
        """What has arrived for a forward."""
        slot = row[Column.FORWARD_ACTIVATION]
        found = self.programs.activations.read(state.activations, self.number, slot)
        return jax.tree.unflatten(jax.tree.structure(self.stage.before), found)

    def _gradient(self, state: LoopState, row: jax.Array) -> list[jax.Array]:
        """The gradients of what the stage made."""
        slot = row[Column.BACKWARD_GRADIENT]
        return self.programs.gradients.read(state.gradients, self.number, slot)

    def _leave(self, state: LoopState, row: jax.Array, made: Border, side: PyTree) -> LoopState:
        """Hands over what a forward made: to the loss, or to the next stage."""
        if self.is_last:

            def write(gradients: list, gradient: list) -> list:
                slot = row[Column.FORWARD_GRADIENT]
                return self.programs.gradients.write(gradients, gradient, self.number, slot)

            head, x = self.programs.head, made[0]
            return run_head(self.spec, head, self.outer, self.micro, state, row, x, side, write)
        columns, receiver = self.programs.activations, self.number + 1
        values = jax.tree.leaves(made)
        if self.has_turns:
            slot = row[Column.FORWARD_TURN]
            activations = columns.write(state.activations, values, receiver, slot)
            state = dataclasses.replace(state, activations=activations)
        message = columns.write(state.send_activation, values, receiver)
        return dataclasses.replace(state, send_activation=message)

    def _send(self, state: LoopState, row: jax.Array, gradient: list[jax.Array]) -> LoopState:
        """Hands the gradients of what reached the stage to the one before."""
        if self.number == 0:
            return state
        columns, receiver = self.programs.gradients, self.number - 1
        if self.has_turns:
            slot = row[Column.BACKWARD_TURN]
            gradients = columns.write(state.gradients, gradient, receiver, slot)
            state = dataclasses.replace(state, gradients=gradients)
        message = columns.write(state.send_gradient, gradient, receiver)
        return dataclasses.replace(state, send_gradient=message)

    def _write_stashes(
        self, state: LoopState, stashes: list[list], slot: jax.Array, weight_slot: jax.Array
    ) -> LoopState:
        """The state with what every unit keeps."""
        parts = [
            each.program.part_stash(stash, is_split=self.sizes.is_split)
            for each, stash in zip(self.stage.units, stashes, strict=True)
        ]
        for_backward = [value for one, _ in parts for value in one]
        for_weights = [value for _, other in parts for value in other]
        rings = self.rings.stash.write(state.stashes, for_backward, self.number, slot, 0)
        waiting = self.rings.weight_stash.write(
            state.weight_stashes, for_weights, self.number, weight_slot, 0
        )
        return dataclasses.replace(state, stashes=rings, weight_stashes=waiting)

    def _read_stashes(self, state: LoopState, row: jax.Array) -> dict[range, list]:
        """What every unit has kept, by its layers."""
        slot, weight_slot = row[Column.BACKWARD_STASH], row[Column.BACKWARD_WEIGHT_STASH]
        values = self.rings.stash.read(state.stashes, self.number, slot, 0)
        waiting = self.rings.weight_stash.read(state.weight_stashes, self.number, weight_slot, 0)
        found, is_split = {}, self.sizes.is_split
        for each in self.stage.units:
            program = each.program
            parts = program.part_stash(list(program.stash), is_split=is_split)
            found[each.numbers] = program.join_stash(
                _take(values, parts[0]), _take(waiting, parts[1]), is_split=is_split
            )
        return found

    def _add(self, sums: list, each: Unit, new: list, chunk: jax.Array) -> list:
        """The sums with the gradients of those parameters of a unit that are reached."""
        leaves = [leaf for layer in each.numbers for leaf in self.packing.leaves_of(layer)]
        which = [leaf for leaf, ok in zip(leaves, each.program.reached, strict=True) if ok]
        place = sum_place(self.spec, chunk)
        return self.packing.columns.add_some(sums, new, self.number, which, place, 0)

    def _params(self, chunk: jax.Array) -> UnitParams:
        """The parameters of the units of this stage in a chunk."""
        return lambda each: self.packing.params_of(self.packed, self.number, each.numbers, chunk)

    def _side(self, row: jax.Array, column: Column) -> PyTree:
        """`(batch, keys)` of a microbatch."""
        return buffers.read((self.micro.batch, self.keys), row[column])


def _take(values: list, like: list | tuple) -> list:
    """The next values, as many as these, taken off the front of a list."""
    taken = values[: len(like)]
    del values[: len(like)]
    return taken
