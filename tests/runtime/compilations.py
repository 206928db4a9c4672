"""Which functions JAX compiles, as it logs them."""

import contextlib
import logging
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collects a line for every program that is compiled (or read from the cache) meanwhile."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if message.startswith("Compiling "):
                found.append(message)

    logger, handler = logging.getLogger("jax"), Collector()
    logger.addHandler(handler)
    try:
        with jax.log_compiles():
            yield found
    finally:
        logger.removeHandler(handler)
