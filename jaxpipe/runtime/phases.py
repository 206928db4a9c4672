"""The phases of a tick on one device: F, R, BW or B, and W, as the rows of a table order them.

Where microbatches come in slices, every slice has programs of its own, and in a sequential model
every stage has. A phase runs the one that its row names: each stands under a conditional that
updates the state in place.

No phase communicates, so each can also run alone, to be measured.
"""

from collections.abc import Callable
from typing import Protocol

import jax

from jaxpipe.lower.table import Column, TableSizes
from jaxpipe.runtime.conditional import when
from jaxpipe.runtime.layer_phases import LayerPhases
from jaxpipe.runtime.loop_state import LoopState
from jaxpipe.runtime.microbatch import Microbatches
from jaxpipe.runtime.model import Params
from jaxpipe.runtime.phase_parts import Rings
from jaxpipe.runtime.programs import Programs, StagePrograms
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.runtime.stage_phases import StagePhases


class _Variant(Protocol):
    """The phases of one slice, or of one stage."""

    def forward(self, state: LoopState, row: jax.Array) -> LoopState: ...

    def recompute(self, state: LoopState, row: jax.Array) -> LoopState: ...

    def backward(self, state: LoopState, row: jax.Array) -> LoopState: ...

    def weight(self, state: LoopState, row: jax.Array) -> LoopState: ...


class Phases:
    """What one device does in a tick, given the operands that do not change between ticks.

    Args:
        spec: The pipeline.
        sizes: Sizes of the table.
        programs: The programs of the model.
        params: Parameters to compute with: blocks `[chunks of all paths, max_layers, ...]`.
        micro: This replica's microbatches.
        keys: A key for each example, shaped as the microbatches, or None.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        sizes: TableSizes,
        programs: Programs,
        params: Params,
        micro: Microbatches,
        keys: jax.Array | None,
    ) -> None:
        self._variants: list[_Variant]
        self._offset: int  # from the column of a stage to the one that names the variant
        rings = Rings(sizes, programs)
        if isinstance(programs, StagePrograms):
            self._variants = [
                LayerPhases(spec, sizes, programs, each, rings, params, micro, keys)
                for each in programs.slices
            ]
            self._offset = Column.FORWARD_SLICE - Column.FORWARD_STAGE
        else:
            self._variants = [
                StagePhases(spec, sizes, programs, number, rings, params, micro, keys)
                for number in range(spec.num_stages)
            ]
            self._offset = 0

    def forward(self, state: LoopState, row: jax.Array) -> LoopState:
        """F: one microbatch through one stage."""
        return self._run(lambda each: each.forward, state, row, Column.FORWARD_STAGE)

    def recompute(self, state: LoopState, row: jax.Array) -> LoopState:
        """R: the layers of one stage once more, this time leaving their stashes."""
        return self._run(lambda each: each.recompute, state, row, Column.RECOMPUTE_STAGE)

    def backward(self, state: LoopState, row: jax.Array) -> LoopState:
        """BW or B: the backward of one microbatch through one stage."""
        return self._run(lambda each: each.backward, state, row, Column.BACKWARD_STAGE)

    def weight(self, state: LoopState, row: jax.Array) -> LoopState:
        """W: the weight gradients of one microbatch in one stage."""
        return self._run(lambda each: each.weight, state, row, Column.WEIGHT_STAGE)

    def _run(
        self,
        phase: Callable[[_Variant], Callable[[LoopState, jax.Array], LoopState]],
        state: LoopState,
        row: jax.Array,
        stage: Column,
    ) -> LoopState:
        if len(self._variants) == 1:
            return phase(self._variants[0])(state, row)
        meant = row[stage + self._offset]
        for number, variant in enumerate(self._variants):
            run = phase(variant)
            state = when(meant == number, lambda tie, s, run=run: run(s, tie(row)), state)
        return state
