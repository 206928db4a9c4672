"""Calling parts of a model with what their signatures ask for.

A batch is a dict of arrays, and different parts need different entries: the embedding the tokens,
attention the segment ids, the loss the targets. A part is called with its input, if it has one, and
by name with those entries that its signature names. `batch` asks for the whole batch, `keys` for
the examples' PRNG keys.

    def __call__(self, x, *, segment_ids=None, keys=None)        gets both if they are there
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxpipe.runtime.model import PyTree


def call_by_name(
    part: Callable,
    name: str,
    inputs: tuple,
    batch: PyTree,
    keys: jax.Array | None = None,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Calls `part` with `inputs`, then by name with what it asks for.

    Args:
        part: A module or function.
        name: What to call it in errors.
        inputs: Its first arguments.
        batch: The batch; entries can be passed on by name if it is a dict.
        keys: PRNG keys of the examples, or None.
        given: What it gets by name in any case.

    Raises:
        ValueError: If the part requires something that the batch does not have.
    """
    entries: Mapping = batch if isinstance(batch, Mapping) else {}
    available = {**entries, "batch": batch, **({} if keys is None else {"keys": keys})}
    given = given or {}
    parameters = [each for each in _parameters(part)[len(inputs) :] if each.name not in given]
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.default is parameter.empty
        and parameter.name not in available
        and parameter.name != "keys"
    ]
    if missing:
        has = ", ".join(map(repr, entries)) or f"no named entries: it is a {type(batch).__name__}"
        raise ValueError(
            f"{name} requires {', '.join(map(repr, missing))}, but the batch has {has}. Rename the "
            f"entry, give the argument a default, or pass a function as {name}= that takes what is "
            "there"
        )
    passed = {
        parameter.name: available.get(parameter.name)
        for parameter in parameters
        if parameter.name in available or (parameter.name == "keys" and _is_required(parameter))
    }
    return part(*inputs, **passed, **given)


def _parameters(part: Callable) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(part).parameters.values())
    except ValueError:  # some builtin functions don't tell: they get their inputs alone
        return []


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty
