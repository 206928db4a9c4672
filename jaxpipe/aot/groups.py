"""Which devices a collective joins: the three ways in which XLA's text names their groups.

replica_groups={{0,2},{1,3}}                      one by one
replica_groups=[2,2]<=[2,2]T(1,0)                 rows of counted, reshaped, transposed numbers
replica_groups=mesh['pipe'=2,'data'=2] {'pipe'}   along axes of a mesh

A device is named by its place in the mesh that the program was compiled for.
"""

import math
import re

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
_COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = r"'[^']+'=\d+"
_ALONG_AXES = re.compile(rf"replica_groups=mesh\[({_AXIS}(?:,{_AXIS})*)\] \{{('[^}}:]*')\}}")


def device_groups(line: str) -> Groups | None:
    """The groups that a collective joins, or the pairs (from, to) of a permutation.

    Returns:
        The groups; none where all devices form one group; None where the line names them in a way
        that is not read here.

    Example:
        >>> device_groups("all-reduce(%x), replica_groups=mesh['pipe'=2,'data'=2] {'pipe'}")
        ((0, 2), (1, 3))
    """
    if found := _LISTED.search(line):
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", found[1]))
    if found := _COUNTED.search(line):
        dims, sizes = _numbers(found[1]), _numbers(found[2])
        order = _numbers(found[3]) if found[3] else tuple(range(len(sizes)))
        return _rows(np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(dims))
    if found := _ALONG_AXES.search(line):
        axes = dict(re.findall(r"'([^']+)'=(\d+)", found[1]))
        joined = re.findall(r"'([^']+)'", found[2])
        sizes = [int(size) for size in axes.values()]
        places = [list(axes).index(name) for name in joined]
        order = [place for place in range(len(sizes)) if place not in places] + places
        counted = np.arange(math.prod(sizes)).reshape(sizes).transpose(order)
        return _rows(counted.reshape(-1, math.prod(sizes[place] for place in places)))
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _rows(numbers: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in numbers.tolist())
