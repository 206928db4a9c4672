"""Compilation for programs that run once.

Most of the time of these tests is LLVM's. Without its optimizations, and with XLA's older way to
write loops, a step compiles in a quarter of the time, with the same arithmetic.
"""

from collections.abc import Callable
from typing import Any

import jax

OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def quick_jit(function: Callable, **options: Any) -> Any:
    """`jax.jit` that compiles fast and runs slowly. Tests of the compiled text must not use it."""
    return jax.jit(function, compiler_options=OPTIONS, **options)
