"""What a step will do and take, as text for people, before it is compiled."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping

import jax

from jaxpipe.lower import Pool, Program, lower
from jaxpipe.runtime.memory import MemoryPlan
from jaxpipe.runtime.model import Params
from jaxpipe.runtime.spec import PipelineSpec
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.split_backward import undivide_backward
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
        whole: Where backwards are split: the primitives of a block that could not be, such as
            `"cond"`; all of their work is in B.
        undivided_cost: Where backwards are split: the cost of the loop if each ran as one BW.
        step_seconds: Predicted duration of a step's loop on real devices, if costs were measured.
        slice_lengths: Tokens of each slice, if microbatches come in slices.
        padding: Of a sequential model: the share of what all devices have room for that an average
            stage leaves empty, for parameters, messages and pools.
    """

    program: Program
    layers_per_stage: tuple[int, ...]
    parameters_per_stage: tuple[int, ...]
    outer_parameters: int
    replicas: int
    microbatch_size: int
    fillers: int
    memory: MemoryPlan
    whole: tuple[str, ...] = ()
    undivided_cost: float | None = None
    step_seconds: float | None = None
    slice_lengths: tuple[int, ...] = ()
    padding: Mapping[str, float] = dataclasses.field(default_factory=dict)

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
        hop = ", messages travel for one tick" if program.hop_ticks else ""
        return "\n".join(
            [
                draw_text(program.schedule, costs),
                _row(
                    "loop",
                    f"{program.num_ticks} ticks in {program.form.value} form, packed "
                    f"{program.packing.value}{hop}; bubble {program.bubble:.1%} of the lockstep "
                    f"loop ({_costs_text(costs)}); slots: {slots}",
                ),
                *self._time_rows(),
                *self._split_rows(),
                _row(
                    "batch",
                    f"{self.replicas} x {program.schedule.num_microbatches} microbatches x "
                    f"{self.microbatch_size} examples = {examples}{fillers}",
                ),
                *self._slice_rows(),
                _row(
                    "parameters",
                    f"layers and parameters of each stage {by_stage}; embedding and head "
                    f"{count_text(self.outer_parameters)}, on every device",
                ),
                _row("memory", f"{bytes_text(memory.total)} per device: {parts}"),
                *self._padding_rows(),
            ]
        )

    def _split_rows(self) -> list[str]:
        """What splitting the backwards is worth, and what of them is not split."""
        rows = []
        if self.undivided_cost is not None:
            ratio = self.undivided_cost / self.program.cost
            what = "longer" if ratio >= 1 else "SHORTER: consider a schedule without W"
            text = f"split; with undivided ones the loop would be {abs(ratio - 1):.1%} {what}"
            rows.append(_row("backward", text))
        if self.whole:
            names = ", ".join(sorted(set(self.whole)))
            text = f"{names} in a block can't be split: B computes all of it, W nothing"
            rows.append(_row("backward", text))
        return rows

    def _slice_rows(self) -> list[str]:
        """The slices of a microbatch, if there are several."""
        if not self.slice_lengths:
            return []
        lengths = " + ".join(map(str, self.slice_lengths))
        return [_row("slices", f"{lengths} = {sum(self.slice_lengths)} tokens of each example")]

    def _padding_rows(self) -> list[str]:
        """What unlike stages leave empty, where all devices have room for the largest."""
        if not self.padding:
            return []
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.padding.items())
        text = f"all devices have room for the largest stage; an average one leaves of {shares}"
        return [_row("padding", text)]

    def _time_rows(self) -> list[str]:
        """The predicted duration of a step, if costs were measured."""
        if self.step_seconds is None:
            return []
        ideal = seconds_text(self.program.ideal_cost)
        text = f"{seconds_text(self.step_seconds)} predicted for the loop; {ideal} without bubbles"
        return [_row("step", text)]


def make_plan(
    spec: PipelineSpec,
    program: Program,
    params: Params,
    num_examples: int,
    memory: MemoryPlan,
    *,
    whole: tuple[str, ...] = (),
    slice_lengths: tuple[int, ...] = (),
    padding: Mapping[str, float] | None = None,
    is_measured: bool = False,
) -> PipelinePlan:
    """The plan for a step, from shapes of parameters in pipeline layout.

    With `is_measured`, the costs of the program are seconds.
    """
    if spec.packing is not None:
        parameters = spec.packing.parameters_per_stage()
    else:
        per_layer = sum(math.prod(leaf.shape[3:]) for leaf in jax.tree.leaves(params.blocks))
        parameters = tuple(per_layer * count for count in spec.layers_per_stage)
    rows = num_examples // spec.num_replicas
    size = -(-rows // spec.num_microbatches)
    return PipelinePlan(
        program=program,
        layers_per_stage=spec.layers_per_stage,
        parameters_per_stage=parameters,
        outer_parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params.outer)),
        replicas=spec.num_replicas,
        microbatch_size=size,
        fillers=size * spec.num_microbatches - rows,
        memory=memory,
        whole=whole,
        undivided_cost=_undivided_cost(program),
        step_seconds=program.cost if is_measured else None,
        slice_lengths=slice_lengths,
        padding=padding or {},
    )


def _undivided_cost(program: Program) -> float | None:
    """The cost of the loop if no backward were split; None if none is."""
    if Pool.WEIGHT_GRADIENT not in program.slots:
        return None
    undivided = undivide_backward(program.schedule)
    return lower(undivided, program.costs, sends_block=program.sends_block).cost


def _row(title: str, text: str) -> str:
    """A titled paragraph with a hanging indent."""
    return textwrap.fill(f"{title:<12}{text}", 100, subsequent_indent=" " * 12)


def bytes_text(size: int) -> str:
    """Bytes in a unit that leaves few digits, such as `"31.0 MiB"`."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 0.9 * 1024**power:
            return f"{size / 1024**power:.1f} {unit}"
    return f"{size} B"


def seconds_text(seconds: float) -> str:
    """A duration in a unit that leaves few digits, such as `"12.3 ms"`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _costs_text(costs: Costs) -> str:
    """What actions cost: on average over the stages where it was measured."""
    if not costs.by_stage:
        return f"at F {costs.forward:g}, B {costs.backward_input:g}, W {costs.backward_weight:g}"
    means = {kind: sum(found) / len(found) for kind, found in costs.by_stage}
    texts = [f"{kind} {seconds_text(mean)}" for kind, mean in means.items() if mean]
    return f"measured, on average of the stages {', '.join(texts)}"


def count_text(count: int) -> str:
    """A number of parameters, such as `"12.6M"`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
