"""Weighted sums over the global batch, and every form of a loss function's result."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime import LossSums
from jaxpipe.runtime.loss import weighted_sums

LOSSES = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
ALL = jnp.ones(3, bool)


def test_losses_alone_have_weight_one_each():
    sums = weighted_sums(LOSSES, ALL)
    assert (float(sums.loss), float(sums.weight), sums.metrics) == (21.0, 6.0, {})


def test_weights_by_token():
    weights = jnp.array([[1.0, 0.0], [0.0, 0.5], [0.0, 0.0]])
    sums = weighted_sums((LOSSES, weights), ALL)
    assert (float(sums.loss), float(sums.weight)) == (3.0, 1.5)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_weights_by_example_of_any_dtype(dtype):
    sums = weighted_sums((LOSSES, jnp.array([1, 0, 1]).astype(dtype)), ALL)
    assert (float(sums.loss), float(sums.weight)) == (14.0, 4.0)


def test_metrics_are_weighted_like_the_losses():
    weights = jnp.array([1.0, 0.0, 2.0])
    sums = weighted_sums((LOSSES, weights, {"double": 2 * LOSSES}), ALL)
    assert float(sums.metrics["double"]) == 2 * float(sums.loss)


def test_fillers_count_for_nothing():
    sums = weighted_sums((LOSSES, None, {"same": LOSSES}), jnp.array([True, False, False]))
    assert (float(sums.loss), float(sums.weight), float(sums.metrics["same"])) == (3.0, 2.0, 3.0)


def test_where_the_weight_is_zero_even_nan_does_not_matter():
    losses = jnp.array([1.0, jnp.nan])
    value, grad = jax.value_and_grad(
        lambda losses: weighted_sums((losses, jnp.array([1.0, 0.0])), jnp.ones(2, bool)).loss
    )(losses)
    assert float(value) == 1.0
    np.testing.assert_array_equal(grad, [1.0, 0.0])


def test_weights_and_metrics_carry_no_gradient():
    """The loss is divided by the weights after the gradients are taken: they count as constant."""

    def total(losses):
        sums = weighted_sums((losses, losses, {"m": losses}), ALL)
        return sums.weight + sums.metrics["m"]

    np.testing.assert_array_equal(jax.grad(total)(LOSSES), jnp.zeros_like(LOSSES))


@pytest.mark.parametrize(
    ("dtype", "summed_in"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32")],
)
def test_sums_are_taken_in_float32_or_better(dtype, summed_in):
    sums = weighted_sums((LOSSES.astype(dtype), None, {"m": LOSSES.astype(dtype)}), ALL)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(sums)} == {summed_in}


def test_float64_losses_stay_float64_under_strict_promotion(float64):
    """Once failed: float64 and float32 have no common dtype where promotion must be explicit."""
    sums = weighted_sums(LOSSES.astype("float64"), ALL)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(sums)} == {"float64"}


def test_means_are_over_everything_and_not_means_of_means():
    """Two microbatches with 5 and 1 valid tokens: the six tokens count the same."""
    sums = LossSums(jnp.array([10.0, 8.0]), jnp.array([5.0, 1.0]), {"m": jnp.array([5.0, 0.0])})
    means = sums.means()
    assert (float(means.loss), float(means.weight)) == (3.0, 6.0)
    assert float(means.metrics["m"]) == pytest.approx(5 / 6)
    assert means.microbatches is sums


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (
            jnp.ones(()),
            "must return one floating-point loss per example (or token): shape [3, ...], the batch "
            "dim first; found float32[]. Leave the sum or mean over the batch to the pipeline",
        ),
        (jnp.ones(2), "shape [3, ...], the batch dim first; found float32[2]"),
        (jnp.ones(3, "int32"), "one floating-point loss per example (or token)"),
        (
            (LOSSES, jnp.ones((3, 1))),
            "the weights must have the leading dims of the losses, [3, 2]; found [3, 1]",
        ),
        ((LOSSES, jnp.ones((3, 2, 1))), "the weights must have the leading dims of the losses"),
        (
            (LOSSES, None, {"accuracy": jnp.ones(3)}),
            "metric 'accuracy' must have the shape of the losses, [3, 2]; found [3]",
        ),
    ],
    ids=["scalar", "other batch", "integers", "weights", "more weights", "metric"],
)
def test_shapes_that_do_not_fit(terms, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        weighted_sums(terms, ALL)


@pytest.mark.parametrize(
    ("terms", "found"),
    [
        ({"loss": LOSSES}, "(dict)"),
        ((LOSSES, 1.0), "(ArrayImpl, float)"),
        ((LOSSES, LOSSES, LOSSES), "(ArrayImpl, ArrayImpl, ArrayImpl)"),
        ((LOSSES, LOSSES, {}, 3), "(ArrayImpl, ArrayImpl, dict, int)"),
        ((), "()"),
    ],
    ids=["dict", "number", "no dict", "four", "none"],
)
def test_terms_of_another_form(terms, found):
    message = (
        "the loss function must return losses, (losses, weights) or (losses, weights, metrics) "
        f"with arrays for losses and weights and a dict for metrics; found {found}"
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        weighted_sums(terms, ALL)
