"""Checkpoints in layer order: saved from any layout, loaded into any other.

A pipeline keeps its parameters per device, padded and permuted. A checkpoint that did the same
could be loaded by the same number of stages only. So everything goes through `from_pipeline` on the
way out and through `to_pipeline` on the way in, and a checkpoint knows nothing of stages: it is a
flat dict from paths such as `params/blocks/attention/query/kernel` to arrays `[num_layers, ...]`,
whatever classes the state was made of.

Saving is asynchronous (the arrays are copied before `save` returns, and written while the caller
goes on) and atomic (a checkpoint appears under its name only when all of it is written), both
through Orbax. The cost: every process reads whole arrays when it loads, and lays out its share
afterwards.
"""

import pathlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxpipe.runtime.pipeline import FunctionalPipeline

State = TypeVar("State")


class CheckpointError(ValueError):
    """A checkpoint is missing, or holds something else than what is to be restored."""


class Checkpoints:
    """The checkpoints of one run, by step.

    Args:
        folder: Where they are; it is created if missing.
        keep: How many of the latest are kept; None keeps all.

    Use it in a `with` statement, or call `close`: what is still being written is waited for.
    """

    def __init__(self, folder: str | pathlib.Path, *, keep: int | None = None) -> None:
        self._folder = pathlib.Path(folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(
            self._folder.absolute(),
            options=options,
            # Named here, so that a checkpoint can be looked at before anything was saved.
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "notes": ocp.JsonCheckpointHandler(),
            },
        )

    def steps(self) -> list[int]:
        """The steps that can be restored, ascending."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        step: int,
        state: Any,
        *,
        pipeline: FunctionalPipeline,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Begins to save. The caller may overwrite or donate `state` as soon as this returns.

        Args:
            step: Its name. A step that is saved already is left as it is.
            state: Any pytree of arrays; what lies in a `Params` is in pipeline pipeline.
            pipeline: The pipeline it belongs to.
            notes: JSON kept beside the arrays: seeds, positions in the data, fingerprints.
        """
        if step in self._manager.all_steps():
            return
        arrays = _flat(pipeline.from_pipeline(state))
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(arrays),  # pyright: ignore[reportCallIssue]
                notes=ocp.args.JsonSave(dict(notes or {})),  # pyright: ignore[reportCallIssue]
            ),
        )

    def restore(self, step: int, like: State, *, pipeline: FunctionalPipeline) -> State:
        """The saved state, laid out for another pipeline or the same one.

        Args:
            step: One of `steps()`.
            like: A state such as the one that was saved, in the layout wanted now: its values are
                not read, but its structure, shapes, dtypes and shardings are.
            pipeline: The pipeline that `like` belongs to.

        Raises:
            CheckpointError: The step is not there, or its arrays are not those of `like`; every
                difference is listed.
        """
        self._check_step(step)
        wanted = jax.eval_shape(pipeline.from_pipeline, like)
        arrays, treedef = _flat(wanted), jax.tree.structure(wanted)
        self._check_arrays(step, arrays)
        # NumPy arrays are read as they are, and placed once, by `to_pipeline`.
        empty = {
            path: np.broadcast_to(np.zeros((), array.dtype), array.shape)
            for path, array in arrays.items()
        }
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardRestore(empty)),  # pyright: ignore[reportCallIssue]
        )["state"]
        in_layer_order = jax.tree.unflatten(treedef, [restored[path] for path in arrays])
        return jax.tree.map(
            lambda leaf, place: jax.device_put(leaf, place.sharding),
            pipeline.to_pipeline(in_layer_order),
            like,
        )

    def notes(self, step: int) -> dict[str, Any]:
        """What was noted beside the arrays.

        Raises:
            CheckpointError: The step is not there.
        """
        self._check_step(step)
        return self._manager.restore(
            step,
            args=ocp.args.Composite(notes=ocp.args.JsonRestore()),  # pyright: ignore[reportCallIssue]
        )["notes"]

    def shapes(self, step: int) -> dict[str, str]:
        """What arrays there are: dtype and shape by path, such as `float32[12, 768, 768]`.

        Raises:
            CheckpointError: The step is not there.
        """
        self._check_step(step)
        saved: Mapping[str, Any] = self._manager.item_metadata(step)["state"].tree
        return {path: _shape(array) for path, array in sorted(saved.items())}

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_step(self, step: int) -> None:
        self._manager.wait_until_finished()  # it may still be under way
        steps = self.steps()
        if step not in steps:
            there = f"there are {', '.join(map(str, steps))}" if steps else "there are none"
            raise CheckpointError(f"{self._folder} has no checkpoint of step {step}: {there}")

    def _check_arrays(self, step: int, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        saved = self.shapes(step)
        problems = [f"- {path} is missing" for path in wanted if path not in saved]
        problems += [f"- {path} has no place in it" for path in saved if path not in wanted]
        for path in wanted:
            if path in saved:
                asked = _shape(wanted[path])
                if saved[path] != asked:
                    problems.append(f"- {path} is {saved[path]}, and {asked} is wanted")
        if problems:
            raise CheckpointError(
                "\n".join(
                    [
                        f"the checkpoint of step {step} in {self._folder} is of another model or "
                        "optimizer:",
                        *problems,
                        "restore it with the settings it was saved with",
                    ]
                )
            )


def _flat(tree: Any) -> dict[str, Any]:
    """Leaves by path, in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _shape(array: Any) -> str:
    return f"{np.dtype(array.dtype).name}{list(array.shape)}"
