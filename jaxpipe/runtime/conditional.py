"""Conditionals that update their state in place.

A buffer that passes through `lax.cond` or `lax.switch` is copied whole by every backend, each time.
A loop with trip count 0 or 1 is a conditional too, and the carry of a loop is updated in place. The
one danger is that XLA moves whatever does not depend on the loop's carry out of the loop, and then
runs it whether or not the loop does. `when` therefore hands its body a function `tie`, which makes
a value depend on the loop counter: what the body computes from tied operands stays inside.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")
State = TypeVar("State")
Tie = Callable[[Tree], Tree]


def when(active: jax.Array, body: Callable[[Tie, State], State], state: State) -> State:
    """`body(tie, state)` where `active` holds, else `state`, in place.

    Args:
        active: bool or integer scalar: 0 or 1.
        body: Returns the new state. Everything large it computes must follow from its state or from
            values passed through `tie`, or it runs where `active` is 0, too.
        state: Any pytree of arrays.
    """

    def step(counter: jax.Array, state: State) -> State:
        def tie(tree: Tree) -> Tree:
            return jax.lax.optimization_barrier((tree, counter))[0]

        return body(tie, state)

    return jax.lax.fori_loop(0, active.astype(jnp.int32), step, state)
