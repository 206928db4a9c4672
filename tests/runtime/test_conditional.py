"""A conditional made of a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.conditional import when


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_it_runs_or_it_does_not(dtype):
    @jax.jit
    def run(active, weight, state):
        def body(tie, state):
            return {"x": state["x"] + tie(weight), "n": state["n"] + 1}

        return when(active, body, state)

    state = {"x": jnp.ones(2, "float32"), "n": jnp.int32(0)}
    still = run(jnp.zeros((), dtype), jnp.float32(3), state)
    changed = run(jnp.ones((), dtype), jnp.float32(3), state)
    jax.tree.map(np.testing.assert_array_equal, still, state)
    np.testing.assert_array_equal(changed["x"], [4.0, 4.0])
    assert int(changed["n"]) == 1


def test_tied_values_keep_their_type_and_structure():
    def body(tie, state):
        tied = tie({"key": jax.random.key(1), "none": None, "flag": jnp.array(True)})
        assert jax.random.key_data(tied["key"]).shape == (2,)
        return jnp.where(tied["flag"], state + 1, state)

    assert int(when(jnp.int32(1), body, jnp.int32(0))) == 1
