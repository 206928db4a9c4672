"""Messages travel beside the computation: read off the compiler's schedule for the H100.

Between the START of a send and its DONE must stand a phase of the tick, which is a loop of 0 or 1
trips. One such program once had every send started and awaited in one breath.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxpipe.aot.hlo import Instruction, parse
from jaxpipe.lower import TableSizes, TickForm, encode, lower
from jaxpipe.runtime import engine
from jaxpipe.schedule import make_schedule
from tests.runtime.test_compiled_text import abstract, make_pipeline

# Programs for machines that are not there can be written to the compilation cache, but not read.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")

TWO_AT_ONCE: dict[str, str | bool] = {"xla_gpu_experimental_parallel_collective_overlap_limit": "2"}


def phases_beside_sends(
    name: str, form: TickForm, hop_ticks: int, options: dict[str, str | bool] | None = None
) -> list[int]:
    """For every send of the loop's body, the phases between its START and its DONE."""
    pipeline = make_pipeline("h100", name)
    program = lower(make_schedule(name, 4, 8), form=form, hop_ticks=hop_ticks)
    table = jax.ShapeDtypeStruct(
        encode(program).shape,
        jnp.int32,
        sharding=NamedSharding(pipeline.spec.mesh, PartitionSpec(None, "pipe")),
    )
    step = jax.jit(engine.value_and_grad(pipeline.spec, TableSizes.of(program)))
    compiled = step.lower(table, *abstract(pipeline), None).compile(compiler_options=options)
    text = compiled.as_text()
    assert text is not None
    bodies = [body for body in parse(text).values() if _has_phases(body)]
    (tick,) = [body for body in bodies if any(_starts(each) for each in body)]
    found = []
    for place, start in enumerate(tick):
        if _starts(start):
            done = next(
                later
                for later in range(place, len(tick))
                if tick[later].opcode == "collective-permute-done"
                and f"(%{start.name})" in tick[later].line
            )
            found.append(sum(each.opcode == "while" for each in tick[place:done]))
    return found


def _starts(instruction: Instruction) -> bool:
    return instruction.opcode == "collective-permute-start"


def _has_phases(body: list[Instruction]) -> bool:
    return sum(each.opcode == "while" for each in body) >= 2


@pytest.mark.parametrize(
    ("name", "form", "hop_ticks"),
    [("eager_1f1b", TickForm.PAIRED, 0), ("1f1b", TickForm.SINGLE, 1), ("zb_h1", TickForm.FULL, 0)],
    ids=["forward and backward a tick", "one action a tick", "all phases a tick"],
)
def test_every_send_of_a_loop_placement_runs_beside_a_phase(name, form, hop_ticks):
    beside = phases_beside_sends(name, form, hop_ticks)
    assert len(beside) == 2
    assert min(beside) >= 1


@pytest.mark.parametrize("name", ["zbv", "chimera"])
@pytest.mark.parametrize(
    ("options", "hidden"), [(None, 2), (TWO_AT_ONCE, 4)], ids=["default", "two at once"]
)
def test_placements_that_send_both_ways(name, options, hidden):
    """By default XLA keeps one collective under way: of two sends of a kind one is not hidden."""
    beside = phases_beside_sends(name, TickForm.PAIRED, 0, options)
    assert len(beside) == 4
    assert sum(count > 0 for count in beside) == hidden
