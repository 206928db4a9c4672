"""A batch cut into microbatches of equal shape, whatever its size.

Compiled loops need static shapes, so a batch that does not divide is filled up: the last example is
repeated, and a mask says which examples are real. Losses of the others get weight 0, so they change
neither the loss nor any gradient.

        10 examples, 4 microbatches      0 1 2 | 3 4 5 | 6 7 8 | 9 9 9
                                                                 ^ ^ not valid
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime.model import Leaf, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Microbatches:
    """The examples of one replica, cut up.

    Attributes:
        batch: Leaves `[num_microbatches, microbatch_size, ...]`.
        examples: Ids of the examples within the global batch, `[num_microbatches,
            microbatch_size]`.
        valid: Whether an example is real rather than a filler, same shape.
    """

    batch: PyTree
    examples: Leaf
    valid: Leaf


def cut(batch: PyTree, num_microbatches: int, shard: jax.Array | int = 0) -> Microbatches:
    """Cuts the examples of one replica.

    Args:
        batch: Leaves `[num_examples, ...]`, at least one example.
        num_microbatches: How many microbatches to make; there may be more than examples.
        shard: Which replica this is: example `i` has the global id `shard * num_examples + i`.
    """
    num_examples = jax.tree.leaves(batch)[0].shape[0]
    size = -(-num_examples // num_microbatches)
    places = np.arange(num_microbatches * size, dtype=np.int32).reshape(num_microbatches, size)
    rows = np.minimum(places, num_examples - 1)

    def cut_leaf(leaf: jax.Array) -> jax.Array:
        if num_examples < rows.size:
            leaf = leaf[rows.ravel()]
        return leaf.reshape(*rows.shape, *leaf.shape[1:])

    return Microbatches(
        batch=jax.tree.map(cut_leaf, batch),
        examples=jnp.asarray(rows) + jnp.asarray(shard, jnp.int32) * num_examples,
        valid=jnp.asarray(places < num_examples),
    )


def check_batch(batch: PyTree, num_shards: int) -> int:
    """The number of examples of a global batch, if it can be split over `num_shards` replicas.

    Raises:
        TypeError, ValueError: If a leaf is no array, sizes differ, the batch is empty, or the
            examples can't be shared out evenly.
    """
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    if not leaves:
        raise ValueError(
            f"the batch has no arrays: found {batch!r}; pass a dict of arrays [batch_size, ...]"
        )
    sizes: dict[str, int] = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                f"batch{name} must be an array [batch_size, ...]; found {type(leaf).__name__}. "
                "Values that are the same for all examples belong into the model or the loss."
            )
        if not leaf.shape:
            raise ValueError(
                f"batch{name} must have the examples as its first dim; found a scalar. Repeat it "
                "for every example, or put it into the model or the loss."
            )
        sizes[name] = leaf.shape[0]
    num_examples = next(iter(sizes.values()))
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"batch{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"all arrays of a batch must hold equally many examples; found {found}")
    if num_examples == 0:
        raise ValueError("the batch is empty: it must hold at least one example")
    if num_examples % num_shards:
        down = num_examples // num_shards * num_shards
        fixes = [str(size) for size in (down, down + num_shards) if size]
        raise ValueError(
            f"a batch of {num_examples} examples can't be split over the {num_shards} replicas of "
            f"the mesh axis 'data': use {' or '.join(fixes)} examples (fill up with weight 0), or "
            f"another size of that axis"
        )
    return num_examples
