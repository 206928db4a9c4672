"""Skips are checked when the model is built: every mistake is named."""

import jax.numpy as jnp
import pytest

from jaxpipe import Sequential
from jaxpipe.nn import in_namespace, pop, stash, with_skips
from tests.runtime.as_users_call import unchecked


def add(name: str) -> object:
    return pop(name, jnp.add)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([add("a"), stash("a")], "'a' is popped by layer 0 before any layer stashes it"),
        ([stash("a"), jnp.tanh], "'a' is stashed by layer 0 and never popped"),
        ([stash("a"), stash("a"), add("a")], "'a' is stashed by layer 0 and by 1"),
        ([stash("a"), add("a"), add("a")], "'a' is popped again by layer 2"),
        (
            [stash("a"), *in_namespace("left", [add("a")])],
            "'left/a' is popped by layer 1 before any layer stashes it; 'a' is stashed by layer 0",
        ),
    ],
)
def test_what_does_not_match_is_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        Sequential(layers)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ("skip", TypeError, r"must be a list of names; found 'skip': write \['skip'\]"),
        (["a", "a"], ValueError, "names 'a' twice"),
        ([""], ValueError, "must be strings without '/'"),
        ([1], ValueError, "must be strings without '/'"),
        (["a/b"], ValueError, "must be strings without '/'"),
    ],
)
@pytest.mark.parametrize("what", ["stash", "pop"])
def test_names_that_are_refused(what, names, error, message):
    """A string is a list of its letters, which nobody means."""
    with pytest.raises(error, match=message):
        unchecked(with_skips)(jnp.tanh, **{what: names})


def test_namespaces_nest_and_keep_equal_names_apart():
    part = [stash("a"), jnp.tanh, add("a")]
    inner = in_namespace("outer", in_namespace("inner", part))
    assert inner[0].full_name("a") == "outer/inner/a"
    model = Sequential([stash("a"), *inner, *in_namespace("other", part), add("a")])
    x = jnp.linspace(-1, 1, 5)
    once = jnp.tanh(x) + x
    expected = jnp.tanh(once) + once + x
    assert jnp.allclose(model(x), expected)


def test_one_layer_may_take_and_leave_several():
    def swap(x, first, second):
        return x, {"sum": first + second, "product": first * second}

    model = Sequential(
        [
            stash("first"),
            jnp.sin,
            stash("second"),
            with_skips(swap, stash=["sum", "product"], pop=["first", "second"]),
            with_skips(lambda x, sum, product: x + sum * product, pop=["product", "sum"]),
        ]
    )
    x = jnp.linspace(0, 1, 4)
    y = jnp.sin(x)
    assert jnp.allclose(model(x), y + (x + y) * x * y)
