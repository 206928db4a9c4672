"""Tables in which every pair of values meets, with far fewer rows than the full product."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(row: Mapping[str, Any]) -> set[Pair]:
    """The pairs of values of one row."""
    return set(itertools.combinations(row.items(), 2))


def all_pairs(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows that hold every pair of values of any two factors, each found greedily.

    Example:
        >>> all_pairs({"a": [1, 2], "b": "xy", "c": [False, True]})[:2]
        [{'a': 1, 'b': 'x', 'c': False}, {'a': 1, 'b': 'y', 'c': True}]
    """
    product = [
        dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())
    ]
    missing = set().union(*map(pairs_of, product))
    rows = []
    while missing:
        rows.append(max(product, key=lambda row: len(missing & pairs_of(row))))
        missing -= pairs_of(rows[-1])
    return rows
