"""When two results count as equal: contract by leaf, not by number.

The largest difference within a leaf may be `tolerance` times the leaf's largest value. Where that
value is tiny beside the largest of all leaves, it is rounding itself (the gradient of a key's bias
is zero in truth), and the difference is measured against the largest leaf.
"""

import jax
import numpy as np

from jaxpipe.runtime.model import PyTree

FLOAT64, FLOAT32 = 1e-12, 1e-5
"""The tolerances for results computed in float64 and in float32."""

NOTHING = 1e-9
"""Leaves smaller than this, relative to the largest, are zero but for rounding."""


def assert_close(found: PyTree, expected: PyTree, tolerance: float) -> None:
    """Fails with every leaf that differs by more than the tolerance."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = [
        (jax.tree_util.keystr(path), np.asarray(ours), np.asarray(theirs))
        for (path, ours), theirs in zip(
            jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
        )
    ]
    largest = max(_size(theirs) for _, _, theirs in pairs)
    problems = []
    for path, ours, theirs in pairs:
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), path
        size = _size(theirs)
        if size <= NOTHING * largest:
            size = largest
        difference = _size(ours.astype(np.float64) - theirs.astype(np.float64))
        if not difference <= tolerance * size:  # also catches NaN
            problems.append(f"{path} differs by {difference:.3g} where values reach {size:.3g}")
    assert problems == []


def _size(leaf: np.ndarray) -> float:
    return float(np.abs(leaf).max(initial=0))
