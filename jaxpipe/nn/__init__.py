"""Flax models as pipelines."""

from jaxpipe.nn.pipeline import Pipeline as Pipeline
