"""What a program takes and does on devices that are not there."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxpipe.aot.collectives import Collective, Send, find_collectives, find_sends
from jaxpipe.aot.groups import Groups
from jaxpipe.aot.topology import Topology
from jaxpipe.runtime.plan import bytes_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A program compiled for a topology; bytes are those of one device. `str` draws it.

    Attributes:
        topology: What it was compiled for.
        arguments: Bytes of the arguments.
        outputs: Bytes of the results that share no buffer with an argument.
        temporaries: Bytes in between, as the compiler counts them.
        predicted: Bytes in between as they were predicted, or None.
        code: Bytes of the program itself.
        usable: Bytes of the chip's memory that a program gets.
        collectives: What crosses between devices.
        sends: The asynchronous sends, in the order of the schedule.
        compile_seconds: Wall time of tracing and compiling.
    """

    topology: Topology
    arguments: int
    outputs: int
    temporaries: int
    predicted: int | None
    code: int
    usable: int
    collectives: tuple[Collective, ...]
    sends: tuple[Send, ...]
    compile_seconds: float

    @property
    def peak(self) -> int:
        """Everything at once."""
        return self.arguments + self.outputs + self.temporaries + self.code

    @property
    def fits(self) -> bool:
        """Whether it goes into the memory of a device."""
        return self.peak <= self.usable

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "topology": str(self.topology),
            "chip": self.topology.chip.title,
            "devices": self.topology.num_devices,
            "fits": self.fits,
            "bytes": {
                "arguments": self.arguments,
                "outputs": self.outputs,
                "temporaries": self.temporaries,
                "predicted_temporaries": self.predicted,
                "code": self.code,
                "peak": self.peak,
                "usable": self.usable,
                "memory": self.topology.chip.memory,
            },
            "collectives": [dataclasses.asdict(each) for each in self.collectives],
            "sends": [
                {**dataclasses.asdict(each), "is_hidden": each.is_hidden} for each in self.sends
            ],
            "compile_seconds": round(self.compile_seconds, 3),
        }

    def __str__(self) -> str:
        chip, verdict = self.topology.chip, "fits" if self.fits else "DOES NOT FIT"
        predicted = ""
        if self.predicted is not None:
            predicted = (
                f", predicted {bytes_text(self.predicted)} "
                f"({self.temporaries / self.predicted:.2f} of that)"
            )
        rows = [
            (
                "compiled for",
                f"{self.topology.num_devices} x {chip.title} ({self.topology}), in "
                f"{self.compile_seconds:.1f} s",
            ),
            ("arguments", bytes_text(self.arguments)),
            ("outputs", f"{bytes_text(self.outputs)} beside the arguments they replace"),
            ("temporaries", f"{bytes_text(self.temporaries)}{predicted}"),
            ("code", bytes_text(self.code)),
            (
                "peak",
                f"{bytes_text(self.peak)} per device, of {bytes_text(self.usable)} usable: "
                f"{verdict}",
            ),
        ]
        rows += [("collectives", self._collective_text(each)) for each in self.collectives]
        rows += [
            ("sends", self._sends_text(in_loop))
            for in_loop in (True, False)
            if any(each.in_loop is in_loop for each in self.sends)
        ]
        return "\n".join(f"{title:<14}{text}" for title, text in rows)

    @staticmethod
    def _collective_text(collective: Collective) -> str:
        where = "in every round of a loop" if collective.in_loop else "once"
        size = bytes_text(collective.bytes)
        among = _groups_text(collective.kind, collective.groups)
        return f"{collective.count} x {collective.kind} {where}, {size} in all{among}"

    def _sends_text(self, in_loop: bool) -> str:
        sends = [each for each in self.sends if each.in_loop is in_loop]
        hidden = sum(each.is_hidden for each in sends)
        where = "inside loops" if in_loop else "outside of loops"
        exposed = [each.name for each in sends if not each.is_hidden]
        alone = f"; nothing runs beside {', '.join(exposed)}" if exposed else ""
        return f"{hidden} of {len(sends)} {where} travel beside computation{alone}"


def _groups_text(kind: str, groups: Groups | None) -> str:
    """Which devices a collective joins, in a few words."""
    if groups is None:
        return ""
    if not groups:
        return ", among all devices"
    first = ", ".join(map(str, groups[0]))
    if kind == "collective-permute":
        shown = ", ".join(f"{source} to {target}" for source, target in groups[:4])
        return f", from device {shown}{', ...' if len(groups) > 4 else ''}"
    if len(groups) == 1:
        return f", among {len(groups[0])} devices"
    return f", among {len(groups)} groups of {len(groups[0])} devices, the first {first}"


class DoesNotFitError(RuntimeError):
    """A program needs more memory than the compiler for its chip will give."""


@contextlib.contextmanager
def memory_refused(topology: Topology) -> Iterator[None]:
    """Says in our words that a compiler gave up for lack of memory, as that for TPUs does.

    Raises:
        DoesNotFitError: With the first line of what the compiler says.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise DoesNotFitError(f"DOES NOT FIT on {topology}: {reason}") from error


def compile_for(
    topology: Topology,
    step: Callable,
    *arguments: Any,
    predicted: int | None = None,
    usable: float | None = None,
    compiler_options: dict[str, str | bool] | None = None,
) -> Report:
    """Compiles a step for a topology.

    Args:
        topology: What to compile for; its `devices()` make the mesh of the shardings below.
        step: A function of arrays, jitted or not.
        *arguments: `jax.ShapeDtypeStruct` with shardings on the topology's devices.
        predicted: Bytes of temporaries that the step should take.
        usable: The share of a chip's memory that a program gets; by default as JAX sets it aside.
        compiler_options: As for `jax.stages.Lowered.compile`.

    Raises:
        ValueError: If `usable` is no share.
        DoesNotFitError: If the compiler itself gives up for lack of memory, as that for TPUs does.
    """
    usable_bytes = topology.chip.usable_bytes(usable)
    begin = time.perf_counter()
    jitted: Any = step if hasattr(step, "lower") else jax.jit(step)
    with memory_refused(topology):
        compiled = jitted.lower(*arguments).compile(compiler_options=compiler_options)
    seconds = time.perf_counter() - begin
    memory, text = compiled.memory_analysis(), compiled.as_text() or ""
    if memory is None:
        raise RuntimeError(f"the compiler for {topology} reports no memory use")
    return Report(
        topology=topology,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        predicted=predicted,
        code=memory.generated_code_size_in_bytes,
        usable=usable_bytes,
        collectives=find_collectives(text),
        sends=find_sends(text),
        compile_seconds=seconds,
    )
