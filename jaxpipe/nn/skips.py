"""Skips: values that go past some layers of a `Sequential`.

A layer *stashes* a value under a name, and a later one *pops* it:

    Sequential([conv, stash("before"), down, up, pop("before", concatenate), head])

Every name is stashed once and popped once, which is checked when the model is built. Parts of a
model that are made by one function use the same names, so each gets a namespace of its own:
`in_namespace("left", layers)`.
"""

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flax import nnx

from jaxpipe.runtime.model import PyTree


class WithSkips(nnx.Module):
    """A layer that takes skips or leaves some. `with_skips` makes it.

    Attributes:
        layer: Called as `layer(x, name=value, ...)` with the popped values by name. It returns `y`,
            or, if it stashes anything, `(y, {name: value, ...})`.
        stashes: The names that it leaves.
        pops: The names that it takes.
        namespace: What stands before these names in the model.
    """

    def __init__(
        self,
        layer: Callable,
        *,
        stashes: tuple[str, ...],
        pops: tuple[str, ...],
        namespace: tuple[str, ...] = (),
    ) -> None:
        self.layer = layer
        self.stashes = stashes
        self.pops = pops
        self.namespace = namespace

    def full_name(self, name: str) -> str:
        """The name in the model, such as `"left/before"`."""
        return "/".join((*self.namespace, name))


def with_skips(layer: Callable, *, stash: Sequence[str] = (), pop: Sequence[str] = ()) -> WithSkips:
    """A layer that takes skips, or leaves some.

    Args:
        layer: A module or function, called as `layer(x, name=value, ...)` with what is popped. If
            anything is stashed it returns `(y, {name: value, ...})`, else `y`.
        stash: Names of the values that it leaves for later layers.
        pop: Names of the values that it takes.

    Raises:
        TypeError, ValueError: If the names are no list of strings, or one of them occurs twice.

    Example:
        >>> layer = with_skips(lambda x, before: x + before, pop=["before"])
        >>> layer.pops
        ('before',)
    """
    return WithSkips(layer, stashes=_names("stash", stash), pops=_names("pop", pop))


def stash(name: str) -> WithSkips:
    """A layer that hands on what it gets, and leaves it for a later layer under a name."""
    return with_skips(lambda x: (x, {name: x}), stash=[name])


def pop(name: str, combine: Callable[[PyTree, PyTree], PyTree]) -> WithSkips:
    """A layer that makes one value of what it gets and of a skip: `combine(x, skip)`."""
    return with_skips(lambda x, **skips: combine(x, skips[name]), pop=[name])


def in_namespace(namespace: str, layers: Iterable[Any]) -> list[Any]:
    """The layers, with a namespace before the names of all their skips.

    Example:
        >>> [layer] = in_namespace("left", [stash("before")])
        >>> layer.full_name("before")
        'left/before'
    """
    return [
        WithSkips(
            each.layer,
            stashes=each.stashes,
            pops=each.pops,
            namespace=(namespace, *each.namespace),
        )
        if isinstance(each, WithSkips)
        else each
        for each in layers
    ]


def check_skips(layers: Sequence[tuple[str, WithSkips]]) -> None:
    """Raises ValueError unless every skip is stashed once and popped once, in this order.

    Args:
        layers: The layers with skips, by name, in model order.
    """
    problems = []
    stashed: dict[str, str] = {}
    popped: collections.Counter[str] = collections.Counter()
    for layer, skips in layers:
        for name in map(skips.full_name, skips.pops):
            if name not in stashed:
                problems.append(f"{name!r} is popped by layer {layer} before any layer stashes it")
            elif popped[name]:
                problems.append(f"{name!r} is popped again by layer {layer}")
            popped[name] += 1
        for name in map(skips.full_name, skips.stashes):
            if name in stashed:
                problems.append(f"{name!r} is stashed by layer {stashed[name]} and by {layer}")
            stashed.setdefault(name, layer)
    problems += [
        f"{name!r} is stashed by layer {layer} and never popped"
        for name, layer in stashed.items()
        if not popped[name]
    ]
    if problems:
        raise ValueError(
            "every skip must be stashed once, and popped once by a later layer: "
            f"{'; '.join(problems)}. Parts that use the same names need namespaces of their own: "
            "in_namespace(name, layers)"
        )


def _names(what: str, names: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{what} must be a list of names; found {names!r}: write [{names!r}]")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(
                f"the names in {what} must be strings without '/', which stands behind namespaces; "
                f"found {name!r}"
            )
    if repeated := [name for name, count in collections.Counter(found).items() if count > 1]:
        raise ValueError(f"{what} names {', '.join(map(repr, repeated))} twice; name it once")
    return found
