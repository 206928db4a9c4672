"""R, B and W together are the backward: the same gradients, and the same matmuls."""

import jax
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from jaxpipe.runtime.backward_split import split_backward
from jaxpipe.runtime.recompute_split import split_recompute
from tests.runtime import blocks_to_split as blocks
from tests.runtime.blocks_to_split import SHAPES, count_runs, read_only, traced_backward

NOTHING = jax.checkpoint_policies.nothing_saveable
KEPT = {"everything kept": None, "nothing kept": NOTHING}

each_policy = pytest.mark.parametrize("policy", KEPT)
each_function = pytest.mark.parametrize(
    "function", SHAPES, ids=[function.__name__ for function in SHAPES]
)


@each_policy
@each_function
def test_r_b_and_w_are_the_backward(float64, function, policy):
    whole, residuals, gradient = traced_backward(function, KEPT[policy])
    recompute = split_recompute(whole, len(residuals))
    count, known = len(SHAPES[function]), len(residuals) + len(recompute.values)
    split = split_backward(recompute.backward, known, list(range(count)), [count])

    def all_three(residuals: list, gradient: jax.Array) -> list:
        values = recompute.recompute(read_only(residuals, recompute.reads))
        assert [each.shape for each in values] == [each.shape for each in recompute.values]
        values = [*residuals, *values]
        of_input, kept = split.backward_input([*read_only(values, split.input_reads), gradient])
        return [*split.backward_weight(read_only(values, split.weight_reads), kept), *of_input]

    expected = jax.jit(jaxpr_as_fun(whole))(*residuals, gradient)
    found = jax.jit(all_three)(residuals, gradient)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    assert count_runs(jax.make_jaxpr(all_three)(residuals, gradient)) == count_runs(whole)


@pytest.mark.parametrize(
    ("function", "kept", "num_matmuls"),
    [
        (blocks.mlp, None, 0),
        # Its last matmul is no part of any gradient.
        (blocks.mlp, NOTHING, 1),
        (blocks.attention, NOTHING, 5),
        # Each layer's first two matmuls, out of the loop that runs backwards.
        (blocks.scanned_checkpointed, None, 4 * 2),
        (blocks.random_in_a_loop, None, 3),
        # The outer loop's body recomputes the inner loop, whose backward recomputes its body.
        (blocks.checkpointed_nest, None, 2 * 3 * 2 + 2 * 3),
        # A loop that prints stays whole, and in the backward.
        (blocks.printing_in_a_loop, None, 0),
    ],
)
def test_matmuls_of_r(float64, function, kept, num_matmuls):
    whole, residuals, _ = traced_backward(function, kept)
    recompute = split_recompute(whole, len(residuals))
    assert count_runs(jax.make_jaxpr(recompute.recompute)(residuals)) == num_matmuls


def test_random_bits_are_drawn_once(float64):
    whole, residuals, _ = traced_backward(blocks.random_in_a_loop, None)
    recompute = split_recompute(whole, len(residuals))
    drawn = ("random_bits",)
    in_r = count_runs(jax.make_jaxpr(recompute.recompute)(residuals), drawn)
    assert (in_r, count_runs(recompute.backward, drawn)) == (count_runs(whole, drawn), 0)


def test_without_recomputation_there_is_no_r(float64):
    whole, residuals, _ = traced_backward(blocks.scanned_gated, None)
    recompute = split_recompute(whole, len(residuals))
    assert recompute.values == ()
    assert recompute.reads == frozenset()
    assert recompute.recompute(residuals) == []
