"""Compilation for programs that run once.

Most of the time of these tests is LLVM's. Without its optimizations, and with XLA's older way to
write loops where a version of XLA still has it, a step compiles in a quarter of the time, with the
same arithmetic.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

UNOPTIMIZED = {"xla_backend_optimization_level": 0}
OLDER_LOOPS = {"xla_cpu_use_fusion_emitters": False}


@functools.cache
def _options() -> dict[str, Any]:
    """The options that this version of XLA knows."""
    options: dict[str, Any] = UNOPTIMIZED | OLDER_LOOPS
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return UNOPTIMIZED
    return options


def quick_jit(function: Callable, **options: Any) -> Any:
    """`jax.jit` that compiles fast and runs slowly. Tests of the compiled text must not use it."""
    return jax.jit(function, compiler_options=_options(), **options)
