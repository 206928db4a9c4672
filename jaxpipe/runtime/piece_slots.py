"""The pieces of a sequence's state in their slots, as one slice reads, leaves and adds to them.

A slice reads the pieces of the slices before it and leaves its own. Its backward reads the gradient
of its own piece, which later slices have added up, and adds to those of earlier ones. Where
microbatches are whole there is nothing of all this, and nothing is done.

What is read of a ring between two writes makes the compiler copy the whole ring. So the order of
reads and writes is made plain here, in whatever way each platform needs.
"""

import jax

from jaxpipe.lower.table import Column, StateColumns
from jaxpipe.lower.ticks import Phase
from jaxpipe.runtime import buffers
from jaxpipe.runtime.conditional import when
from jaxpipe.runtime.differentiable import has_gradient, split
from jaxpipe.runtime.model import PyTree
from jaxpipe.runtime.ordering import after
from jaxpipe.runtime.sequence_state import Pieces, SequenceState
from jaxpipe.runtime.spec import PipelineSpec

Slots = list[jax.Array]
"""The slots of slices 0, 1, ... of one microbatch."""


class PieceSlots:
    """The pieces, for one of the slices.

    Args:
        spec: The pipeline.
        state: The state of a block; None where microbatches are whole.
        number: Which slice this is.
    """

    def __init__(self, spec: PipelineSpec, state: SequenceState | None, number: int) -> None:
        self.state = state
        self.number = number
        self.is_last = number + 1 == spec.num_slices
        self.max_layers = spec.layout.max_layers
        self.columns = StateColumns.of(spec.layout.placement, spec.num_slices)
        self.is_on_cpu = spec.mesh.devices.flat[0].platform == "cpu"

    def slots(self, row: jax.Array, phase: Phase) -> Slots:
        """Where a row says that the pieces up to this slice lie, for a phase."""
        columns = {
            Phase.FORWARD: self.columns.forward,
            Phase.RECOMPUTE: self.columns.recompute,
            Phase.BACKWARD: self.columns.backward,
        }
        return [row[column] for column in columns[phase][: self.number + 1]]

    def gradient_slots(self, row: jax.Array) -> Slots:
        """Where their gradients lie."""
        return [row[column] for column in self.columns.gradient[: self.number + 1]]

    def read(
        self, rings: list, slots: Slots, position: jax.Array, *, with_own: bool = False
    ) -> Pieces:
        """What a layer needs of the pieces before this slice, and with its own."""
        if self.state is None:
            return []
        return [
            [
                None if shape is None else buffers.read(ring, slots[number], position, like=shape)
                for ring, shape in zip(
                    rings, self.state.needed(number, self.number - 1), strict=True
                )
            ]
            for number in range(self.number + with_own)
        ]

    def write(self, rings: list, piece: list, y: PyTree, slots: Slots, position: jax.Array) -> list:
        """The rings with this slice's piece of a layer, whose result is `y`."""
        if self.state is None:
            return rings
        if self.is_on_cpu and self.number:
            # What is read of earlier pieces goes into `y`. XLA for CPUs may put off these reads
            # until after the write.
            piece = after(piece, y)
        return buffers.write(rings, piece, slots[self.number], position)

    def read_gradients(self, rings: list, slots: Slots) -> list[jax.Array]:
        """The gradients of this slice's piece in all layers: `[max_layers, ...]`.

        They are read at once, before the loop over the layers writes to the same rings. The last
        slice leaves a state that nobody reads.
        """
        if self.state is None or self.is_last:
            return []
        pieces, _ = split(list(self.state.pieces[self.number]))
        like = [jax.ShapeDtypeStruct((self.max_layers, *each.shape), each.dtype) for each in pieces]
        return buffers.read(rings, slots[self.number], like=like)

    def add_gradients(
        self, rings: list, found: list, row: jax.Array, slots: Slots, position: jax.Array
    ) -> list:
        """The rings with what a layer's backward has found for the pieces before this slice.

        The last slice is the first one to write to the slots. A leaf that is replaced is read by
        the next slice alone.
        """
        if self.state is None:
            return rings
        shapes = zip(self.state.pieces[self.number], self.state.grows, strict=True)
        growing = [grows for shape, grows in shapes if has_gradient(shape)]
        values, rings = iter(found), list(rings)
        for number in range(self.number):
            for place, grows in enumerate(growing):
                if not grows and number + 1 < self.number:
                    continue
                slot, new = (slots[number], position), next(values)
                if self.is_last or not grows:
                    rings[place] = buffers.write(rings[place], new, *slot)
                elif self.is_on_cpu:
                    # XLA for CPUs would read the ring for the next slice in one program with the
                    # write for this one. A loop of one trip makes it one after the other.
                    rings[place] = when(
                        row[Column.BACKWARD] != 0,
                        lambda tie, ring, new=new, slot=slot: buffers.add(ring, tie(new), *slot),
                        rings[place],
                    )
                else:
                    rings[place] = buffers.add(rings[place], new, *slot)
        return rings
