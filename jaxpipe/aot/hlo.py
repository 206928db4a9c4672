"""Reads the text of a compiled program: its computations, its loops, and what stands inside them.

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %f.1 = f32[4,8]{1,0} fusion(%a, %b), kind=kLoop, calls=%fused.1
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%c, %f.1)
}
"""

import dataclasses
import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?[)\]}]) ([a-z][\w\-]*)\(")
_SHAPE = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|condition|calls|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations|called_computations|calls)=\{([^}]*)\}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: What it is called.
        opcode: What it does, such as `copy`.
        shapes: The shapes of its results.
        result_bytes: Their bytes.
        called: The computations it calls.
        is_root: Whether it is the result of its computation.
        line: As it stands in the text.
    """

    name: str
    opcode: str
    shapes: tuple[tuple[int, ...], ...]
    result_bytes: tuple[int, ...]
    called: tuple[str, ...]
    is_root: bool
    line: str


Computations = dict[str, list[Instruction]]


def parse(text: str) -> Computations:
    """Every computation of a program by its name."""
    computations: Computations = {}
    instructions: list[Instruction] = []
    for line in text.splitlines():
        if start := _COMPUTATION.match(line):
            instructions = computations.setdefault(start[1], [])
        elif found := _INSTRUCTION.match(line):
            root, name, types, opcode = found.groups()
            called = ",".join(_CALLED.findall(line) + _BRANCHES.findall(line))
            instructions.append(
                Instruction(
                    name=name,
                    opcode=opcode,
                    shapes=tuple(_sizes(match[3]) for match in _SHAPE.finditer(types)),
                    result_bytes=tuple(
                        math.prod(_sizes(match[3])) * max(1, int(match[2] or 8) // 8)
                        for match in _SHAPE.finditer(types)
                    ),
                    called=tuple(
                        part.strip(" %") for part in called.split(",") if part.strip(" %")
                    ),
                    is_root=root is not None,
                    line=line.strip(),
                )
            )
    return computations


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size)


def inside_loops(computations: Computations) -> Iterator[Instruction]:
    """Every instruction that a loop may run: its body, and all that is called from there."""
    bodies = [
        body
        for instructions in computations.values()
        for instruction in instructions
        if instruction.opcode == "while"
        for body in instruction.called
    ]
    seen: set[str] = set()
    while bodies:
        name = bodies.pop()
        if name in seen:
            continue
        seen.add(name)
        for instruction in computations[name]:
            bodies += instruction.called
            yield instruction


def root(computations: Computations, name: str) -> Instruction:
    """The instruction whose result is that of the computation."""
    return next(found for found in computations[name] if found.is_root)
