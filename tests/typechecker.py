"""The type checker of the tests: beartype, taught about `typing.Self`.

jaxtyping decorates methods one by one, and beartype knows what `Self` is only when it decorates the
whole class. So `Self` is left unchecked; everything else is checked on every call.
"""

import typing
from collections.abc import Callable
from typing import Any, TypeVar

import beartype

Function = TypeVar("Function", bound=Callable)


def check(function: Function) -> Function:
    """The function, with its arguments and its result checked at every call."""
    hints = getattr(function, "__annotations__", {})
    if typing.Self in hints.values():
        function.__annotations__ = {
            name: Any if hint is typing.Self else hint for name, hint in hints.items()
        }
    return beartype.beartype(function)
