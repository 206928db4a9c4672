"""The phases of a stage of equal layers: one loop over them in each phase.

    +-------------------------------+  +------------------+  +-----------------------------+  +----+
    | F                             |  | R                |  | BW, or B                    |  | W  |
    |   first stage: embed          |  |   read its input |  |   layers L-1..0: read stash |  |    |
    |   layers 0..L-1: write stash, |->|   layers 0..L-1: |->|     add weight gradients,   |->|... |
    |     or keep the input for R   |  |     write stash  |  |     or keep for W           |  |    |
    |   last stage: head, loss and  |  |                  |  |   first stage: backward of  |  |    |
    |     the gradient they start   |  |                  |  |     the embedding           |  |    |
    +-------------------------------+  +------------------+  +-----------------------------+  +----+

The layers of a stage are a loop of the engine's own rather than a `lax.scan` inside the stage: so a
layer's stash goes straight into its slot, its weight gradient is added straight to its accumulator,
no gradient of a whole stage is ever held, and stages of different length differ in a trip count
alone.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxpipe.lower.table import BackwardPass, Column, Forward, TableSizes
from jaxpipe.lower.ticks import Phase
from jaxpipe.lower.wires import has_turns
from jaxpipe.runtime import buffers
from jaxpipe.runtime.conditional import Tie, when
from jaxpipe.runtime.differentiable import split
from jaxpipe.runtime.loop_state import LoopState
from jaxpipe.runtime.microbatch import Microbatches
from jaxpipe.runtime.model import Params, PyTree
from jaxpipe.runtime.phase_parts import Rings, add_where, apart, choose, run_head, sum_place
from jaxpipe.runtime.piece_slots import PieceSlots
from jaxpipe.runtime.programs import SlicePrograms, StagePrograms
from jaxpipe.runtime.randomness import EMBED, part_keys
from jaxpipe.runtime.spec import PipelineSpec

Slots = tuple[jax.Array, jax.Array]
"""A slot of the stashes that wait for the backward, and one of those that wait for W."""


class LayerPhases:
    """The phases of whole microbatches, or of one slice of each."""

    def __init__(
        self,
        spec: PipelineSpec,
        sizes: TableSizes,
        programs: StagePrograms,
        mine: SlicePrograms,
        rings: Rings,
        params: Params,
        micro: Microbatches,
        keys: jax.Array | None,
    ) -> None:
        self.spec = spec
        self.sizes = sizes
        self.programs = mine
        self.num_tokens = programs.num_tokens
        self.number = mine.piece.number if mine.piece else 0
        self.pieces = PieceSlots(spec, programs.state, self.number)
        self.rings = rings
        self.params = params
        self.micro = micro
        self.keys = keys
        self.has_turns = has_turns(spec.layout.placement)

    def forward(self, state: LoopState, row: jax.Array) -> LoopState:
        """F, and the head behind it on the last stage."""
        stage, side = row[Column.FORWARD_STAGE], self._side(row[Column.FORWARD_MICROBATCH])

        def embed(tie: Tie, _: PyTree) -> PyTree:
            batch, keys = tie(side)
            return self.programs.embed.forward(self.params.outer, (batch, part_keys(keys, EMBED)))

        def keep(carry: tuple[PyTree, LoopState], row: jax.Array) -> tuple[PyTree, LoopState]:
            x, state = carry
            slots = row[Column.FORWARD_STASH], row[Column.FORWARD_WEIGHT_STASH]
            stage, chunk = row[Column.FORWARD_STAGE], row[Column.FORWARD_CHUNK]
            states = self.pieces.slots(row, Phase.FORWARD)
            return self._layers_with_stash(stage, chunk, side, x, state, slots, states)

        def leave(carry: tuple[PyTree, LoopState], row: jax.Array) -> tuple[PyTree, LoopState]:
            x, state = carry
            if self.sizes.recomputes:
                inputs = buffers.write(state.inputs, x, row[Column.FORWARD_INPUT])
                state = dataclasses.replace(state, inputs=inputs)
            return self._layers(row, side, x, state)

        x = buffers.read(state.activations, row[Column.FORWARD_ACTIVATION], like=self.programs.x)
        x = when(stage == 0, embed, x)
        bodies = {Forward.KEEPING: keep, Forward.PASSING: leave}
        x, state = choose(self.sizes, bodies, row, Column.FORWARD, (x, state))
        state = when(
            stage == self.spec.num_stages - 1,
            lambda tie, state: self._head(state, *tie((row, x, side))),
            state,
        )
        if self.has_turns:
            activations = buffers.write(state.activations, x, row[Column.FORWARD_TURN])
            state = dataclasses.replace(state, activations=activations)
        return dataclasses.replace(state, send_activation=buffers.put(state.send_activation, x))

    def recompute(self, state: LoopState, row: jax.Array) -> LoopState:
        """R: what F would have left."""
        stage, chunk = row[Column.RECOMPUTE_STAGE], row[Column.RECOMPUTE_CHUNK]
        slots = row[Column.RECOMPUTE_STASH], row[Column.RECOMPUTE_WEIGHT_STASH]
        x = buffers.read(state.inputs, row[Column.RECOMPUTE_INPUT], like=self.programs.x)
        side = self._side(row[Column.RECOMPUTE_MICROBATCH])
        states = self.pieces.slots(row, Phase.RECOMPUTE)
        _, state = self._layers_with_stash(
            stage, chunk, side, x, state, slots, states, leaves_piece=False
        )
        return state

    def backward(self, state: LoopState, row: jax.Array) -> LoopState:
        """BW or B, and the backward of the embedding behind it on the first stage."""
        stage, side = row[Column.BACKWARD_STAGE], self._side(row[Column.BACKWARD_MICROBATCH])
        like, _ = split(self.programs.x)
        gradient = buffers.read(state.gradients, row[Column.BACKWARD_GRADIENT], like=like)
        full = self._part_b if self.sizes.is_split else self._whole_backward
        bodies: dict[BackwardPass, Callable] = {
            BackwardPass.FULL: lambda carry, row: self._layers_back(full, carry, row, side),
            BackwardPass.INPUT: lambda carry, row: self._layers_back(
                self._input_alone, carry, row, side
            ),
        }
        gradient, state = choose(self.sizes, bodies, row, Column.BACKWARD, (gradient, state))

        def embed(tie: Tie, state: LoopState) -> LoopState:
            gradient_tied, batch, keys = tie((gradient, *side))
            found = self.programs.embed.backward(
                self.params.outer, (batch, part_keys(keys, EMBED)), gradient_tied
            )
            sums = add_where(self.programs.embed.reached, state.outer_gradients, found)
            return dataclasses.replace(state, outer_gradients=sums)

        state = when(stage == 0, embed, state)
        if self.has_turns:
            gradients = buffers.write(state.gradients, gradient, row[Column.BACKWARD_TURN])
            state = dataclasses.replace(state, gradients=gradients)
        return dataclasses.replace(state, send_gradient=buffers.put(state.send_gradient, gradient))

    def weight(self, state: LoopState, row: jax.Array) -> LoopState:
        """W: from what B and the forward have left for it."""
        stage, chunk = row[Column.WEIGHT_STAGE], row[Column.WEIGHT_CHUNK]
        side, layer_program = self._side(row[Column.WEIGHT_MICROBATCH]), self.programs.layer
        rings = self.rings

        def layer(position: jax.Array, sums: list) -> list:
            params, layer_side = self._layer_operands(stage, chunk, position, side)
            waited = rings.weight_stash.read(
                state.weight_stashes, self.number, row[Column.WEIGHT_STASH], position
            )
            stash = layer_program.join_stash(None, waited, is_split=True)
            kept = rings.kept.read(state.kept, self.number, row[Column.WEIGHT_KEPT], position)
            new = layer_program.backward_weight(params, stash, layer_side, kept)
            return buffers.add(sums, new, sum_place(self.spec, chunk), position)

        sums = jax.lax.fori_loop(0, self._count(stage), layer, state.block_gradients)
        return dataclasses.replace(state, block_gradients=sums)

    def _head(self, state: LoopState, row: jax.Array, x: PyTree, side: PyTree) -> LoopState:
        """Head and loss of a microbatch, and the gradient that they start."""

        def write(gradients: list, gradient: list) -> list:
            return buffers.write(gradients, gradient, row[Column.FORWARD_GRADIENT])

        head, outer = self.programs.head, self.params.outer
        return run_head(
            self.spec,
            head,
            outer,
            self.micro,
            state,
            row,
            x,
            side,
            write,
            slice_number=self.number,
        )

    def _layers(
        self, row: jax.Array, side: PyTree, x: PyTree, state: LoopState
    ) -> tuple[PyTree, LoopState]:
        """The layers of a stage, keeping nothing but the pieces of their states."""
        stage, chunk = row[Column.FORWARD_STAGE], row[Column.FORWARD_CHUNK]
        slots = self.pieces.slots(row, Phase.FORWARD)

        def layer(position: jax.Array, carry: tuple[PyTree, list]) -> tuple[PyTree, list]:
            x, states = carry
            params, layer_side = self._layer_operands(stage, chunk, position, side)
            past = self.pieces.read(states, slots, position)
            x, piece = self.programs.layer.output(params, x, layer_side, past)
            return x, self.pieces.write(states, piece, x, slots, position)

        x, states = jax.lax.fori_loop(0, self._count(stage), layer, (x, state.states))
        return x, dataclasses.replace(state, states=states)

    def _layers_with_stash(
        self,
        stage: jax.Array,
        chunk: jax.Array,
        side: PyTree,
        x: PyTree,
        state: LoopState,
        slots: Slots,
        state_slots: list[jax.Array],
        *,
        leaves_piece: bool = True,
    ) -> tuple[PyTree, LoopState]:
        """The layers of a stage, each leaving its stash in the slots, and a piece of its state."""
        program, is_split = self.programs.layer, self.sizes.is_split
        columns = (self.rings.stash, self.rings.weight_stash)

        def layer(position: jax.Array, carry: tuple) -> tuple[PyTree, tuple, list]:
            x, rings, states = carry
            params, layer_side = self._layer_operands(stage, chunk, position, side)
            past = self.pieces.read(states, state_slots, position)
            x, piece, stash = program.forward(params, x, layer_side, past)
            parts = program.part_stash(stash, is_split=is_split)
            rings = tuple(
                column.write(ring, part, self.number, slot, position)
                for column, ring, part, slot in zip(columns, rings, parts, slots, strict=True)
            )
            if leaves_piece:
                states = self.pieces.write(states, piece, x, state_slots, position)
            return x, rings, states

        rings = (state.stashes, state.weight_stashes)
        x, (stashes, waiting), states = jax.lax.fori_loop(
            0, self._count(stage), layer, (x, rings, state.states)
        )
        return x, dataclasses.replace(state, stashes=stashes, weight_stashes=waiting, states=states)

    def _layers_back(
        self, back: Callable, carry: tuple[list, LoopState], row: jax.Array, side: PyTree
    ) -> tuple[list, LoopState]:
        """`back` of every layer of a stage, from the last one to the first."""
        stage, chunk = row[Column.BACKWARD_STAGE], row[Column.BACKWARD_CHUNK]
        count, program, rings = self._count(stage), self.programs.layer, self.rings
        slots = self.pieces.slots(row, Phase.BACKWARD)
        gradient_slots = self.pieces.gradient_slots(row)
        of_pieces = self.pieces.read_gradients(carry[1].state_gradients, gradient_slots)

        def layer(step: jax.Array, carry: tuple[list, LoopState]) -> tuple[list, LoopState]:
            gradient, state = carry
            position = count - 1 - step
            params, layer_side = self._layer_operands(stage, chunk, position, side)
            stash = program.join_stash(
                rings.stash.read(state.stashes, self.number, row[Column.BACKWARD_STASH], position),
                rings.weight_stash.read(
                    state.weight_stashes, self.number, row[Column.BACKWARD_WEIGHT_STASH], position
                ),
                is_split=self.sizes.is_split,
            )
            of_piece = buffers.read(of_pieces, position)
            pieces = self.pieces.read(state.states, slots, position, with_own=True)
            operands = (params, stash, layer_side, [*gradient, *of_piece], pieces)
            found, state = back(state, row, position, operands)
            of_past = found[len(gradient) :]
            gradients = self.pieces.add_gradients(
                state.state_gradients, of_past, row, gradient_slots, position
            )
            state = dataclasses.replace(state, state_gradients=gradients)
            return found[: len(gradient)], state

        return jax.lax.fori_loop(0, count, layer, carry)

    def _whole_backward(
        self, state: LoopState, row: jax.Array, position: jax.Array, operands: tuple
    ) -> tuple[list, LoopState]:
        """BW of one layer: B, and W at once."""
        params, stash, side, *_ = operands
        gradient, kept = self.programs.layer.backward_input(*operands)
        chunk = sum_place(self.spec, row[Column.BACKWARD_CHUNK])

        def add(tie: Tie, sums: list) -> list:
            new = self.programs.layer.backward_weight(params, stash, side, tie(kept))
            return buffers.add(sums, new, chunk, position)

        total = apart(self.spec, row, add, state.block_gradients)
        return gradient, dataclasses.replace(state, block_gradients=total)

    def _part_b(
        self, state: LoopState, row: jax.Array, position: jax.Array, operands: tuple
    ) -> tuple[list, LoopState]:
        """B of one layer, which W will follow."""
        gradient, found = self.programs.layer.backward_input(*operands)
        kept = self.rings.kept.write(
            state.kept, found, self.number, row[Column.BACKWARD_KEPT], position
        )
        return gradient, dataclasses.replace(state, kept=kept)

    def _input_alone(
        self, state: LoopState, row: jax.Array, position: jax.Array, operands: tuple
    ) -> tuple[list, LoopState]:
        """B of one layer whose weights are frozen."""
        return self.programs.layer.input_gradient(*operands), state

    def _count(self, stage: jax.Array) -> jax.Array | int:
        """Layers of a stage: a number where all stages have the same, which compiles better."""
        counts = self.spec.layout.layers_per_stage
        return counts[0] if len(set(counts)) == 1 else jnp.array(counts, jnp.int32)[stage]

    def _layer_operands(
        self, stage: jax.Array, chunk: jax.Array, position: jax.Array, side: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Parameters and `(batch, keys)` of the layer at a position of a stage."""
        number = jnp.array(self.spec.layout.first_layers, jnp.int32)[stage] + position
        batch, keys = side
        params = buffers.read(self.params.blocks, chunk, position)
        return params, (batch, part_keys(keys, EMBED + 1 + number))

    def _side(self, microbatch: jax.Array) -> PyTree:
        """`(batch, keys)` of a microbatch or its slice; the keys are those of the examples."""
        batch, keys = buffers.read((self.micro.batch, self.keys), microbatch)
        if self.programs.piece is not None:
            assert self.num_tokens is not None
            batch = self.programs.piece.take(batch, self.num_tokens)
        return batch, keys
