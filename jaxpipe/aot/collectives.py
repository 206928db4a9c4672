"""What a compiled program sends around, read off its text."""

import collections
import dataclasses
import re

from jaxpipe.aot.groups import Groups, device_groups
from jaxpipe.aot.hlo import Computations, Instruction, inside_loops, parse

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "reduce-scatter",
    "ragged-all-to-all",
)

_MATMULS = ("convolution", "dot")
# Libraries and hand-written kernels that XLA calls for matmuls and attention. Other custom calls,
# such as the allocation of a buffer, are nothing that a message could hide behind.
_KERNELS = re.compile(r'custom_call_target="[^"]*(?:cublas|cudnn|triton|mosaic|tpu_custom_call)')
# START of these has its operands among its results; that of an all-reduce has not.
_OPERANDS_AMONG_RESULTS = ("all-gather-start", "collective-permute-start")
_OPERANDS = re.compile(r"-start\(([^)]*)\)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """The collectives of one kind in one place that join the same devices.

    Attributes:
        kind: Such as `"all-reduce"`.
        in_loop: Whether they run inside a loop: then once for every round.
        count: How many stand there.
        bytes: What their results hold together, on one device.
        groups: The places in the mesh of the devices that each group joins, or for a
            `collective-permute` its pairs (from, to); `()` if all devices form one group, None if
            the compiler names them in an unknown way.
    """

    kind: str
    in_loop: bool
    count: int
    bytes: int
    groups: Groups | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Send:
    """An asynchronous send between its START and its DONE.

    Attributes:
        name: Of its START.
        in_loop: Whether it stands inside a loop.
        beside: Matmuls, and loops and fusions that hold some, that run while it is under way.
    """

    name: str
    in_loop: bool
    beside: int

    @property
    def is_hidden(self) -> bool:
        """Whether anything runs beside it."""
        return self.beside > 0


def find_collectives(text: str) -> tuple[Collective, ...]:
    """The collectives of a compiled program, by kind, place and devices."""
    computations = parse(text)
    in_loops = {id(each) for each in inside_loops(computations)}
    found: dict[tuple[str, bool, Groups | None], list[Instruction]] = collections.defaultdict(list)
    for body in computations.values():
        for instruction in body:
            kind = instruction.opcode.removesuffix("-start")
            if kind in KINDS:
                place = id(instruction) in in_loops
                found[kind, place, device_groups(instruction.line)].append(instruction)
    return tuple(
        Collective(
            kind=kind,
            in_loop=in_loop,
            count=len(instructions),
            bytes=sum(_result_bytes(each) for each in instructions),
            groups=groups,
        )
        for (kind, in_loop, groups), instructions in sorted(
            found.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] or ())
        )
    )


def find_sends(text: str) -> tuple[Send, ...]:
    """The asynchronous sends of a scheduled program; none where sends are not asynchronous."""
    computations = parse(text)
    in_loops = {id(each) for each in inside_loops(computations)}
    working = _working(computations)
    return tuple(
        Send(
            name=start.name,
            in_loop=id(start) in in_loops,
            beside=sum(_is_work(each, working) for each in body[place + 1 : end]),
        )
        for body in computations.values()
        for place, start in enumerate(body)
        if start.opcode == "collective-permute-start"
        and (end := _done(body, start, place)) is not None
    )


def _working(computations: Computations) -> set[str]:
    """The computations that hold a matmul, or call one that does."""
    working: set[str] = set()
    while True:
        more = {
            name
            for name, body in computations.items()
            if name not in working and any(_is_work(each, working) for each in body)
        }
        if not more:
            return working
        working |= more


def _is_work(instruction: Instruction, working: set[str]) -> bool:
    """Whether an instruction takes long enough to hide a message."""
    return (
        instruction.opcode in _MATMULS
        or (instruction.opcode == "custom-call" and bool(_KERNELS.search(instruction.line)))
        or not working.isdisjoint(instruction.called)
    )


def _done(body: list[Instruction], start: Instruction, place: int) -> int | None:
    """Where the DONE of a send stands."""
    for later in range(place + 1, len(body)):
        opcode, line = body[later].opcode, body[later].line
        if opcode == "collective-permute-done" and f"%{start.name})" in line.replace(" ", ""):
            return later
    return None


def _result_bytes(instruction: Instruction) -> int:
    """Bytes of a collective's result."""
    found = instruction.result_bytes
    operands = _OPERANDS.search(instruction.line)
    if instruction.opcode in _OPERANDS_AMONG_RESULTS and operands is not None:
        num_operands = operands[1].count("%")
        # Operands, results, and on TPUs two words for the hardware.
        return sum(found[num_operands : 2 * num_operands])
    return sum(found)
