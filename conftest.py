"""What holds for every test and every example in a docstring.

8 CPU devices, a compilation cache, checked shapes, strict dtypes.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

# These are read when jax is first imported or used. With the CUDA plugin installed but no GPU (it
# brings the H100 compiler that some tests use) jax must neither look for a GPU nor complain.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
# On CPU a program that waits in a collective keeps its thread. With as few threads as cores, two
# programs under way on 8 devices can wait for each other, until XLA aborts the process. XLA admits
# 32 programs per device, so this many threads are always enough.
os.environ.setdefault("PJRT_NPROC", str(32 * 8))

import jax
import jaxtyping
import pytest

import tests.typechecker

ROOT = pathlib.Path(__file__).parent

jax.config.update("jax_num_cpu_devices", 8)

# Compiling is most of the time of these tests: keep every executable between runs.
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Shapes and dtypes in jaxpipe's signatures are checked at run time, here and nowhere else.
CHECKER = tests.typechecker.check
jaxtyping.install_import_hook("jaxpipe", f"{CHECKER.__module__}.{CHECKER.__name__}")

# Our own layers must not promote dtypes silently. Layers of flax and optax do, so the tests of
# whole models and of training run without.
STRICT_LAYERS = {"schedule", "lower", "runtime"}


@pytest.fixture(autouse=True)
def dtype_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes implicit dtype promotion an error in tests and docstrings of our own layers."""
    folders = request.path.relative_to(ROOT).parts
    strict = len(folders) > 1 and folders[1] in STRICT_LAYERS
    with jax.numpy_dtype_promotion("strict") if strict else contextlib.nullcontext():
        yield
