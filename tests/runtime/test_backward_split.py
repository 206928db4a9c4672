"""B and W together are the backward: the same gradients, and the same matmuls."""

import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxpipe.runtime.backward_split import BackwardSplit, split_backward
from tests.runtime import blocks_to_split as blocks
from tests.runtime.blocks_to_split import SHAPES, count_runs, read_only, traced_backward

POLICIES = {
    "everything kept": None,
    "matmuls kept": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "nothing kept": jax.checkpoint_policies.nothing_saveable,
}
WHOLE = {
    blocks.branching: ("cond",),
    blocks.branching_in_a_loop: ("cond",),
    blocks.printing_in_a_loop: ("scan",),
    blocks.hidden_weights: ("while",),
}
# Matmuls of W: one for each time that a weight is used. Whatever stays whole leaves none.
OF_WEIGHTS = {
    blocks.mlp: 2,
    blocks.gated_mlp: 3,
    blocks.attention: 4,
    blocks.shared_weight: 2,
    blocks.several_results: 1,
    blocks.einsum: 1,
    blocks.convolution: 1,
    blocks.lookup: 0,
    blocks.scanned: 3,
    blocks.scanned_gated: 12,
    blocks.scanned_checkpointed: 12,
    blocks.scanned_backwards: 3,
    blocks.one_weight_in_every_round: 3,
    blocks.nested_loops: 2 * 3 + 2,
    blocks.checkpointed_nest: 2 * 3 * 2,
    blocks.matmuls_kept_in_a_loop: 3,
    blocks.random_in_a_loop: 3,
    blocks.ordered: 3,
    blocks.branching_beside_weights: 4,
    blocks.recurrent: 2 * 4,
    blocks.branching: 0,
    blocks.branching_in_a_loop: 0,
    blocks.printing_in_a_loop: 0,
    blocks.largest: 1,
    blocks.nearly_largest: 1,
    blocks.reductions: 1,
    blocks.hidden_weights: 1,
}
# What is recomputed for the weights' gradients alone, what attention has averaged, is recomputed in
# W, unless B would hand over more for that than if it did so itself.
RECOMPUTED_IN_W = {(blocks.attention, "matmuls kept"): 1}

each_policy = pytest.mark.parametrize("policy", POLICIES)
each_function = pytest.mark.parametrize(
    "function", SHAPES, ids=[function.__name__ for function in SHAPES]
)


def traced(function: Any, policy: Any) -> tuple[ClosedJaxpr, BackwardSplit, list, jax.Array, int]:
    """The backward of a function, its split, residuals, a gradient, and how many weights it has."""
    whole, residuals, gradient = traced_backward(function, policy)
    count = len(SHAPES[function])
    split = split_backward(whole, len(residuals), list(range(count)), [count])
    return whole, split, residuals, gradient, count


@each_policy
@each_function
def test_gradients_are_those_of_the_whole_backward(float64, function, policy):
    whole, split, residuals, gradient, count = traced(function, POLICIES[policy])

    def both(residuals: list, gradient: jax.Array) -> list:
        # Each part gets only what it says it reads.
        for_input = read_only(residuals, split.input_reads)
        of_input, kept = split.backward_input([*for_input, gradient])
        assert [each.shape for each in kept] == [each.shape for each in split.kept]
        for_weights = read_only(residuals, split.weight_reads)
        return [*split.backward_weight(for_weights, kept), *of_input]

    expected = jax.jit(jaxpr_as_fun(whole))(*residuals, gradient)
    found = jax.jit(both)(residuals, gradient)
    assert len(found) == count + 1
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@each_policy
@each_function
def test_no_matmul_runs_twice(float64, function, policy):
    whole, split, residuals, gradient, _ = traced(function, POLICIES[policy])
    of_input = jax.make_jaxpr(lambda *inputs: split.backward_input(list(inputs)))
    of_weights = jax.make_jaxpr(split.backward_weight)
    runs_of_input = count_runs(of_input(*residuals, gradient))
    runs_of_weights = count_runs(of_weights(residuals, list(split.kept)))
    assert runs_of_input + runs_of_weights == count_runs(whole)
    recomputed = RECOMPUTED_IN_W.get((function, policy), 0)
    assert runs_of_weights == OF_WEIGHTS[function] + recomputed


def test_w_is_not_handed_the_scores_of_a_long_sequence(float64):
    """It was: the square of the sequence per head, kept from B until W, to average values again."""
    length = 64
    whole, residuals, _ = traced_backward(blocks.attention, POLICIES["matmuls kept"], length)
    split = split_backward(whole, len(residuals), list(range(5)), [5])
    assert max(math.prod(leaf.shape) for leaf in split.kept) == 2 * length * blocks.WIDTH


def test_an_unknown_kernel_runs_once(float64):
    """Whatever has several results counts as expensive, even if nobody has listed it."""
    whole, split, residuals, gradient, _ = traced(blocks.nearly_largest, None)
    of_input = jax.make_jaxpr(lambda *inputs: split.backward_input(list(inputs)))
    of_weights = jax.make_jaxpr(split.backward_weight)
    kernel = ("approx_top_k",)
    assert count_runs(whole, kernel) == 1
    assert count_runs(of_input(*residuals, gradient), kernel) == 1
    assert count_runs(of_weights(residuals, list(split.kept)), kernel) == 0


@each_policy
@each_function
def test_what_stays_whole_is_reported(float64, function, policy):
    _, split, _, _, _ = traced(function, POLICIES[policy])
    assert split.whole == WHOLE.get(function, ())


@each_policy
@each_function
def test_what_each_part_reads_is_exact(float64, function, policy):
    """Of the residuals that a part names, its program uses every one."""
    _, split, residuals, gradient, _ = traced(function, POLICIES[policy])
    of_input = jax.make_jaxpr(lambda *inputs: split.backward_input(list(inputs)))
    of_weights = jax.make_jaxpr(split.backward_weight)
    count = len(residuals)
    read = used_inputs(of_input(*residuals, gradient))
    assert {place for place in read if place < count} == split.input_reads
    read = used_inputs(of_weights(residuals, list(split.kept)))
    assert {place for place in read if place < count} == split.weight_reads
    assert {place - count for place in read if place >= count} == set(range(len(split.kept)))


def used_inputs(program: ClosedJaxpr) -> set[int]:
    """The inputs that stand in any equation of a program or among its results."""
    atoms = [*program.jaxpr.outvars]
    for equation in program.jaxpr.eqns:
        atoms += equation.invars
    used = {id(atom) for atom in atoms}
    return {place for place, each in enumerate(program.jaxpr.invars) if id(each) in used}


def test_cheap_values_are_computed_again_rather_than_kept(float64):
    """The activation's value is not handed over: only output gradients of the two matmuls are."""
    _, split, _, gradient, _ = traced(blocks.mlp, POLICIES["matmuls kept"])
    hidden = (*gradient.shape[:-1], 12)
    assert sorted(each.shape for each in split.kept) == sorted([gradient.shape, hidden])
