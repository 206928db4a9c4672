"""Fixtures of this folder."""

from tests.runtime.precision import float64 as float64
