"""What a step will do and take, as text for people, before it is compiled."""

import dataclasses
import math
import textwrap

import jax

from jaxpipe.lower import Pool, Program
from jaxpipe.runtime.memory import MemoryPlan
from jaxpipe.runtime.model import Params
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.schedule.text import draw_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """The prediction for one step. `str` draws it.

    Attributes:
        program: The lowered schedule: ticks, cost, bubble, slots.
        layers_per_stage: Layers of every stage, in model order.
        parameters_per_stage: Block parameters of every stage, in numbers.
        outer_parameters: Parameters of embedding and head, which every device holds.
        replicas: Copies of the pipeline along the mesh axis `data`.
        microbatch_size: Examples of one microbatch.
        fillers: Examples that are added to fill the microbatches of one replica.
        memory: Bytes on one device.
    """

    program: Program
    layers_per_stage: tuple[int, ...]
    parameters_per_stage: tuple[int, ...]
    outer_parameters: int
    replicas: int
    microbatch_size: int
    fillers: int
    memory: MemoryPlan

    def __str__(self) -> str:
        program, costs, memory = self.program, self.program.costs, self.memory
        pools = [(program.max_slots(pool), pool.value) for pool in Pool]
        slots = ", ".join(f"{count} {pool}" for count, pool in pools if count)
        examples = self.replicas * self.microbatch_size * program.schedule.num_microbatches
        fillers = f", {self.fillers} of them fillers with weight 0" if self.fillers else ""
        stages = zip(self.layers_per_stage, self.parameters_per_stage, strict=True)
        by_stage = ", ".join(f"{layers}: {count_text(count)}" for layers, count in stages)
        parts = ", ".join(
            f"{name.replace('_', ' ')} {bytes_text(size)}"
            for name, size in dataclasses.asdict(memory).items()
            if size
        )
        return "\n".join(
            [
                draw_text(program.schedule, costs),
                _row(
                    "loop",
                    f"{program.num_ticks} ticks in {program.form.name.lower()} form, bubble "
                    f"{program.bubble:.1%} of the lockstep loop (at F {costs.forward:g}, "
                    f"B {costs.backward_input:g}, W {costs.backward_weight:g}); slots: {slots}",
                ),
                _row(
                    "batch",
                    f"{self.replicas} x {program.schedule.num_microbatches} microbatches x "
                    f"{self.microbatch_size} examples = {examples}{fillers}",
                ),
                _row(
                    "parameters",
                    f"layers and parameters of each stage {by_stage}; embedding and head "
                    f"{count_text(self.outer_parameters)}, on every device",
                ),
                _row("memory", f"{bytes_text(memory.total)} per device: {parts}"),
            ]
        )


def make_plan(
    spec: PipelineSpec, program: Program, params: Params, num_examples: int, memory: MemoryPlan
) -> PipelinePlan:
    """The plan for a step, from shapes of parameters in pipeline layout."""
    per_layer = sum(math.prod(leaf.shape[3:]) for leaf in jax.tree.leaves(params.blocks))
    rows = num_examples // spec.num_replicas
    size = -(-rows // spec.num_microbatches)
    return PipelinePlan(
        program=program,
        layers_per_stage=spec.layout.layers_per_stage,
        parameters_per_stage=tuple(per_layer * count for count in spec.layout.layers_per_stage),
        outer_parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params.outer)),
        replicas=spec.num_replicas,
        microbatch_size=size,
        fillers=size * spec.num_microbatches - rows,
        memory=memory,
    )


def _row(title: str, text: str) -> str:
    """A titled paragraph with a hanging indent."""
    return textwrap.fill(f"{title:<12}{text}", 100, subsequent_indent=" " * 12)


def bytes_text(size: int) -> str:
    """Bytes in a unit that leaves few digits, such as `"31.0 MiB"`."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 0.9 * 1024**power:
            return f"{size / 1024**power:.1f} {unit}"
    return f"{size} B"


def count_text(count: int) -> str:
    """A number of parameters, such as `"12.6M"`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
