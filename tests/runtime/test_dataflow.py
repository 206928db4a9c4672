"""What depends on what in a jaxpr, and evaluation of parts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.dataflow import CALLS, evaluate, inline, output_dependencies


def in_scan(a, b, c):
    def step(carry, x):
        first, second = carry
        return (first * b, second + first), (x * 2, second)

    (first, second), (doubled, seconds) = jax.lax.scan(step, (a, b), c)
    return first, second, doubled, seconds


def in_reverse_scan(a, b, c):
    def step(carry, x):
        return carry * a, (carry, x + b)

    last, (carries, sums) = jax.lax.scan(step, a, c, reverse=True)
    return last, carries, sums


def in_cond(a, b, c):
    return jax.lax.cond(a > 0, lambda: (b, b), lambda: (c[0], b * 2))


def in_custom(a, b, c):
    return jax.nn.relu(a), jax.nn.silu(b), jax.nn.logsumexp(c)


def in_reduction(a, b, c):
    """Its body is for pairs of elements, and no call."""
    return jax.lax.reduce(c * a, b, lambda first, second: first + second + first * second, (0,))


A, B, C = jnp.float32(2.0), jnp.float32(3.0), jnp.arange(4.0, dtype="float32")

# What the outputs of each function depend on, by position of its inputs.
CASES: dict[str, tuple[Callable, list[set[int]]]] = {
    "plain": (lambda a, b, c: (a, a * b, jnp.sum(c), 1.0), [{0}, {0, 1}, {2}, set()]),
    "jit": (lambda a, b, c: jax.jit(lambda a, b: (b, a * 2))(a, b), [{1}, {0}]),
    "nested jit": (
        lambda a, b, c: jax.jit(lambda a, b: jax.jit(lambda x: (x, a))(b))(a, b),
        [{1}, {0}],
    ),
    "checkpoint": (
        lambda a, b, c: jax.checkpoint(lambda a, b: (jnp.sin(b), a * 2))(a, b),
        [{1}, {0}],
    ),
    # The second carry depends on the first of the iteration before.
    "scan": (in_scan, [{0, 1}, {0, 1}, {2}, {0, 1}]),
    "reverse scan": (in_reverse_scan, [{0}, {0}, {1, 2}]),
    # Branches are not looked into: each output depends on every input.
    "cond": (in_cond, [{0, 1, 2}, {0, 1, 2}]),
    # Values wait for each other, and none depends on another.
    "barrier": (lambda a, b, c: jax.lax.optimization_barrier((c, a * b)), [{2}, {0, 1}]),
    "reduction": (in_reduction, [{0, 1, 2}]),
    "custom rules": (in_custom, [{0}, {1}, {2}]),
    "while": (
        lambda a, b, c: jax.lax.while_loop(
            lambda v: v[0] < b, lambda v: (v[0] + 1, v[1] * 2), (a, c)
        ),
        [{0, 1, 2}, {0, 1, 2}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_dependencies(name):
    function, expected = CASES[name]
    closed = jax.make_jaxpr(function)(A, B, C)
    assert [set(found) for found in output_dependencies(closed)] == expected
    assert [set(found) for found in output_dependencies(closed.jaxpr)] == expected


@pytest.mark.parametrize("name", CASES)
def test_any_output_alone_needs_no_more_than_its_inputs(name):
    """What an output does not depend on may be missing altogether."""
    function, expected = CASES[name]
    closed = jax.make_jaxpr(function)(A, B, C)
    results = jax.tree.leaves(function(A, B, C))
    for position, needed in enumerate(expected):
        inputs = [value if place in needed else None for place, value in enumerate((A, B, C))]
        (found,) = evaluate(closed, inputs, [position])
        np.testing.assert_array_equal(found, results[position])


@pytest.mark.parametrize("name", CASES)
def test_all_outputs_in_any_order(name):
    function, _ = CASES[name]
    closed = jax.make_jaxpr(function)(A, B, C)
    results = jax.tree.leaves(function(A, B, C))
    positions = [*reversed(range(len(results))), 0]
    found = jax.jit(lambda *inputs: evaluate(closed, inputs, positions))(A, B, C)
    for ours, position in zip(found, positions, strict=True):
        np.testing.assert_array_equal(ours, results[position])


@pytest.mark.parametrize("name", CASES)
def test_inlined_programs_compute_the_same(name):
    function, _ = CASES[name]
    flat = inline(jax.make_jaxpr(function)(A, B, C))
    assert not {equation.primitive.name for equation in flat.jaxpr.eqns} & CALLS
    found = evaluate(flat, (A, B, C), range(len(flat.jaxpr.outvars)))
    for ours, theirs in zip(found, jax.tree.leaves(function(A, B, C)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def count(jaxpr: Any, primitive: str) -> int:
    """How often a primitive stands in a jaxpr, also below others."""
    return str(jaxpr).count(f"= {primitive}")


def test_only_what_is_wanted_runs():
    def function(a, b):
        def step(carry, x):
            return jnp.sin(carry), jnp.cos(x)

        return jax.lax.scan(step, a, b)

    closed = jax.make_jaxpr(function)(A, C)
    carry = jax.make_jaxpr(lambda a: evaluate(closed, [a, None], [0]))(A)
    stacked = jax.make_jaxpr(lambda b: evaluate(closed, [None, b], [1]))(C)
    assert (count(carry, "sin"), count(carry, "cos")) == (1, 0)
    assert (count(stacked, "sin"), count(stacked, "cos")) == (0, 1)


def test_constants_of_a_closed_jaxpr():
    table = np.arange(3.0, dtype="float32")
    closed = jax.make_jaxpr(lambda a: (a * jnp.asarray(table), a))(A)
    np.testing.assert_array_equal(evaluate(closed, [A], [0])[0], 2 * table)


@pytest.mark.parametrize("with_effects", [True, False])
def test_effects_run_unless_something_is_evaluated_again(with_effects):
    seen = []

    def function(a, b):
        jax.debug.callback(seen.append, b)
        return a * 2

    closed = jax.make_jaxpr(function)(A, B)
    inputs = [A, B if with_effects else None]
    (found,) = evaluate(closed, inputs, [0], with_effects=with_effects)
    jax.effects_barrier()
    assert float(found) == 4.0
    assert [float(value) for value in seen] == [3.0] * with_effects
