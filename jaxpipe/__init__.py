"""Pipeline parallelism for JAX and Flax: a schedule is data, one compiled loop runs any of them.

The names below load what they need when they are first used, so that `jaxpipe.schedule` and the
command line start without JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxpipe.nn.pipeline import Pipeline as Pipeline
    from jaxpipe.nn.sequential import Sequential as Sequential
    from jaxpipe.nn.sequential_pipeline import SequentialPipeline as SequentialPipeline
    from jaxpipe.runtime.loss import LossMeans as LossMeans
    from jaxpipe.runtime.mesh import make_mesh as make_mesh
    from jaxpipe.runtime.model import LayeredModel as LayeredModel
    from jaxpipe.runtime.model import Params as Params
    from jaxpipe.runtime.model import StatefulBlock as StatefulBlock
    from jaxpipe.runtime.pipeline import FunctionalPipeline as FunctionalPipeline
    from jaxpipe.runtime.remat import recompute as recompute
    from jaxpipe.runtime.waste import WastefulWarning as WastefulWarning

_HOMES = {
    "FunctionalPipeline": "jaxpipe.runtime.pipeline",
    "LayeredModel": "jaxpipe.runtime.model",
    "LossMeans": "jaxpipe.runtime.loss",
    "Params": "jaxpipe.runtime.model",
    "Pipeline": "jaxpipe.nn.pipeline",
    "Sequential": "jaxpipe.nn.sequential",
    "SequentialPipeline": "jaxpipe.nn.sequential_pipeline",
    "StatefulBlock": "jaxpipe.runtime.model",
    "WastefulWarning": "jaxpipe.runtime.waste",
    "make_mesh": "jaxpipe.runtime.mesh",
    "recompute": "jaxpipe.runtime.remat",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxpipe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
