"""Which outputs of a jaxpr depend on which inputs, and evaluation of some outputs alone.

The stage programs ask two questions of a traced function: does this residual depend on anything but
the parameters, and does this gradient depend on the cotangent at all? Both are answered by
following variables through the equations. Calls (`jit`, `checkpoint`, ...) and `scan` are looked
into, since their outputs rarely depend on all of their inputs; a barrier orders values and mixes
none; of any other equation each output is taken to depend on every input, which errs on the safe
side.

Evaluation follows the same rule: it binds only what the wanted outputs depend on. Of a call or a
scan that is wanted in part, it runs that part. Inputs that nothing depends on may be None.
Equations with effects (`jax.debug.print`) are wanted as well, unless the caller evaluates something
again.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

Inputs = frozenset[int]
"""Positions of inputs."""

# Other primitives have a body as well, but don't just run it once on their inputs: `reduce` runs it
# for every pair of elements, `shard_map` on the parts that lie on one device.
CALLS = frozenset(
    {
        "checkpoint",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "jit",
        "pjit",
        "remat",
        "remat2",
    }
)
BARRIER = "optimization_barrier"


def output_dependencies(jaxpr: Jaxpr | ClosedJaxpr) -> list[Inputs]:
    """For every output, the positions of the inputs it depends on."""
    jaxpr = _open(jaxpr)
    return _propagate(jaxpr, _each_alone(len(jaxpr.invars)))


def evaluate(
    jaxpr: Jaxpr | ClosedJaxpr,
    inputs: Sequence,
    positions: Sequence[int],
    *,
    with_effects: bool = True,
) -> list:
    """These outputs of the jaxpr, by running only what they depend on.

    Args:
        jaxpr: What to evaluate.
        inputs: Its inputs; those that nothing wanted depends on may be None.
        positions: Positions of the wanted outputs.
        with_effects: Whether to run equations for their effects, too.
    """
    outputs = [_open(jaxpr).outvars[position] for position in positions]
    return evaluate_atoms(jaxpr, inputs, outputs, {}, with_effects=with_effects)


def evaluate_atoms(
    jaxpr: Jaxpr | ClosedJaxpr,
    inputs: Sequence,
    atoms: Sequence[Any],
    given: Mapping[Any, Any],
    *,
    with_effects: bool = True,
) -> list:
    """These variables of the jaxpr, which need not be outputs, when some others are known.

    Args:
        jaxpr: What to evaluate.
        inputs: Its inputs; those that nothing wanted depends on may be None.
        atoms: Variables or literals of the jaxpr.
        given: Values of variables of the jaxpr, which are then not computed.
        with_effects: Whether to run equations for their effects, too.
    """
    consts = jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()
    jaxpr = _open(jaxpr)
    needed = {atom for atom in atoms if not isinstance(atom, Literal)}
    runs: list[Callable[[dict], None]] = []
    for equation in reversed(jaxpr.eqns):
        places = [
            place
            for place, variable in enumerate(equation.outvars)
            if variable in needed and variable not in given
        ]
        has_effects = with_effects and bool(equation.effects)
        if places or has_effects:
            reads = input_places(equation, None if has_effects else places)
            needed.update(read_variables(equation, reads))
            is_whole = has_effects or len(reads) == len(equation.invars)
            runs.append(functools.partial(run_equation, equation, places, is_whole))
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))
    values.update(given)
    for run in reversed(runs):
        run(values)
    return [read_atom(values, atom) for atom in atoms]


def inline(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """The same program without calls: their equations stand where they were called."""
    return jax.make_jaxpr(lambda *inputs: _run_inlined(jaxpr, inputs))(*input_shapes(jaxpr))


def input_shapes(jaxpr: Jaxpr | ClosedJaxpr) -> list[jax.ShapeDtypeStruct]:
    """The shapes of a program's inputs."""
    avals: list[Any] = [variable.aval for variable in _open(jaxpr).invars]
    return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]


def _run_inlined(jaxpr: Jaxpr | ClosedJaxpr, inputs: Sequence) -> list:
    consts = jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()
    jaxpr = _open(jaxpr)
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        body = _called(equation)
        if body is None:
            run_equation(equation, list(range(len(equation.outvars))), True, values)
        else:
            results = _run_inlined(body, [read_atom(values, atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
    return [read_atom(values, atom) for atom in jaxpr.outvars]


def read_variables(equation: JaxprEqn, places: Inputs) -> list[Any]:
    """The variables among the equation's inputs at these places."""
    atoms = [equation.invars[place] for place in sorted(places)]
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def input_places(equation: JaxprEqn, places: list[int] | None) -> Inputs:
    """The inputs that the outputs at these places depend on; None stands for all inputs."""
    if places is None:
        return frozenset(range(len(equation.invars)))
    read_by = equation_dependencies(equation)
    return frozenset().union(*(read_by[place] for place in places))


def equation_dependencies(equation: JaxprEqn) -> list[Inputs]:
    """For every output of an equation, the positions of the inputs it depends on."""
    return _through(equation, _each_alone(len(equation.invars)))


def read_atom(values: dict, atom: Any) -> Any:
    """The value of a variable, None if there is none, or that of a literal."""
    return atom.val if isinstance(atom, Literal) else values.get(atom)


def run_equation(equation: JaxprEqn, places: list[int], is_whole: bool, values: dict) -> None:
    """Adds the outputs of an equation at these places to the values.

    Args:
        equation: What to run.
        places: Positions of the wanted outputs.
        is_whole: Whether to bind the equation as it is, rather than only what these outputs need.
        values: Values of variables.
    """
    inputs = [read_atom(values, atom) for atom in equation.invars]
    body, name = _called(equation), equation.primitive.name
    with equation.ctx.manager:
        if is_whole or (body is None and name not in ("scan", BARRIER)):
            params = equation.primitive.get_bind_params(equation.params)
            results = equation.primitive.bind(*inputs, **params)
            results = results if equation.primitive.multiple_results else [results]
            results = [results[place] for place in places]
        elif name == "scan":
            results = _run_scan(equation, inputs, places)
        elif body is None:
            results = jax.lax.optimization_barrier([inputs[place] for place in places])
        else:
            results = evaluate(body, inputs, places, with_effects=False)
    values.update(
        (equation.outvars[place], result) for place, result in zip(places, results, strict=True)
    )


def carried_along(equation: JaxprEqn, places: Sequence[int]) -> tuple[list[int], Inputs]:
    """What a scan must carry for the outputs at these places, and which inputs its body then reads.

    Returns:
        Positions of carried values, which include those at the places, and positions of the body's
        inputs.
    """
    num_consts, num_carry = scan_parts(equation)
    read_by = output_dependencies(equation.params["jaxpr"])
    kept = {place for place in places if place < num_carry}
    stacked = [place for place in places if place >= num_carry]
    while True:
        reads = frozenset().union(*(read_by[place] for place in [*kept, *stacked]))
        carried = {place - num_consts for place in reads if 0 <= place - num_consts < num_carry}
        if carried <= kept:
            return sorted(kept), reads
        kept |= carried


def _run_scan(equation: JaxprEqn, inputs: list, places: list[int]) -> list:
    """A scan with only that part of its carry and body that the outputs at these places need."""
    body = equation.params["jaxpr"]
    num_consts, num_carry = scan_parts(equation)
    carry_places, reads = carried_along(equation, places)
    stacked = [place for place in places if place >= num_carry]
    consts, scanned = inputs[:num_consts], inputs[num_consts + num_carry :]
    scanned = [
        value if num_consts + num_carry + place in reads else None
        for place, value in enumerate(scanned)
    ]

    def step(carry: list, scanned: list) -> tuple[list, list]:
        spread: list = [None] * num_carry
        for place, value in zip(carry_places, carry, strict=True):
            spread[place] = value
        wanted = [*carry_places, *stacked]
        results = evaluate(body, [*consts, *spread, *scanned], wanted, with_effects=False)
        return results[: len(carry_places)], results[len(carry_places) :]

    start = [inputs[num_consts + place] for place in carry_places]
    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    carry, ys = jax.lax.scan(step, start, scanned, **options)
    found = dict(zip([*carry_places, *stacked], [*carry, *ys], strict=True))
    return [found[place] for place in places]


def _propagate(jaxpr: Jaxpr, inputs: Sequence[Inputs]) -> list[Inputs]:
    """What the outputs depend on when the jaxpr's inputs depend on `inputs`."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> Inputs:
        return frozenset() if isinstance(atom, Literal) else known.get(atom, frozenset())

    for equation in jaxpr.eqns:
        outputs = _through(equation, [of(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, outputs, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _through(equation: JaxprEqn, inputs: list[Inputs]) -> list[Inputs]:
    """What the outputs of an equation depend on."""
    if equation.primitive.name == "scan":
        return _through_scan(equation, inputs)
    if equation.primitive.name == BARRIER:
        return inputs
    body = _called(equation)
    if body is not None:
        return _propagate(_open(body), inputs)
    return [frozenset().union(*inputs)] * len(equation.outvars)


def _through_scan(equation: JaxprEqn, inputs: list[Inputs]) -> list[Inputs]:
    """A scan's carry is followed round the loop until nothing is added any more."""
    body = _open(equation.params["jaxpr"])
    num_consts, num_carry = scan_parts(equation)
    consts, scanned = inputs[:num_consts], inputs[num_consts + num_carry :]
    carry = inputs[num_consts : num_consts + num_carry]
    while True:
        outputs = _propagate(body, [*consts, *carry, *scanned])
        grown = [old | new for old, new in zip(carry, outputs[:num_carry], strict=True)]
        if grown == carry:
            return [*carry, *outputs[num_carry:]]
        carry = grown


def scan_parts(equation: JaxprEqn) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many carry.

    The operands are constants, carry and scanned arrays, the results carry and stacked arrays. JAX
    versions spell the counts differently; but scanned and stacked arrays have one dim more outside
    the body than inside, and tell themselves apart by that.
    """
    body = _open(equation.params["jaxpr"])
    num_scanned = _count_stacked(equation.invars, body.invars)
    num_carry = len(body.outvars) - _count_stacked(equation.outvars, body.outvars)
    return len(equation.invars) - num_carry - num_scanned, num_carry


def _count_stacked(outside: Sequence, inside: Sequence) -> int:
    return sum(
        len(outer.aval.shape) > len(inner.aval.shape)
        for outer, inner in zip(outside, inside, strict=True)
    )


def _called(equation: JaxprEqn) -> Jaxpr | ClosedJaxpr | None:
    """The body of a call: the only jaxpr among the parameters, if inputs and outputs match."""
    if equation.primitive.name not in CALLS:
        return None
    bodies = [value for value in equation.params.values() if isinstance(value, ClosedJaxpr | Jaxpr)]
    if len(bodies) != 1:
        return None
    body = _open(bodies[0])
    matches = len(body.invars) == len(equation.invars)
    return bodies[0] if matches and len(body.outvars) == len(equation.outvars) else None


def _open(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """The jaxpr without its constants (JAX 0.12 has one type for both)."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _each_alone(count: int) -> list[Inputs]:
    return [frozenset({position}) for position in range(count)]
