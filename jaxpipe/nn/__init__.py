"""Flax models as pipelines."""

from jaxpipe.nn.adapters import from_linen as from_linen
from jaxpipe.nn.adapters import with_params as with_params
from jaxpipe.nn.pipeline import Pipeline as Pipeline
from jaxpipe.nn.sequential import Sequential as Sequential
from jaxpipe.nn.sequential_pipeline import SequentialPipeline as SequentialPipeline
from jaxpipe.nn.skips import in_namespace as in_namespace
from jaxpipe.nn.skips import pop as pop
from jaxpipe.nn.skips import stash as stash
from jaxpipe.nn.skips import with_skips as with_skips
