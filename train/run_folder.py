"""The folder of a run: `config.yaml`, `metrics.jsonl` and `checkpoints/`."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from train.config import Config, dump_config, load_config
from train.user_error import UserError


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what it leaves.

    Attributes:
        path: The folder.
    """

    path: pathlib.Path

    @property
    def config_file(self) -> pathlib.Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> pathlib.Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint_folder(self) -> pathlib.Path:
        return self.path / "checkpoints"

    def check_fresh(self) -> None:
        """Refuses a folder that is not free for a new run.

        Raises:
            UserError: There is something in it already, or a file stands in its place.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; give the run a folder with --run_dir")
        if self.path.is_dir() and any(self.path.iterdir()):
            raise UserError(
                f"{self.path} is not empty; go on with that run with --resume, put this one "
                f"elsewhere with --run_dir, or remove the folder (rm -r {self.path})"
            )

    def check_resumable(self, config: Config) -> list[str]:
        """Compares with what the run in the folder was started with.

        Returns:
            A line for every setting that is not what it was.

        Raises:
            UserError: There is no run here, or it had settings that cannot change on the way.
        """
        if not self.config_file.is_file():
            raise UserError(
                f"there is no run in {self.path} to resume (no config.yaml); start one by leaving "
                "out --resume, or say where it is with --run_dir"
            )
        changes = dict(_changes(load_config(self.config_file), config))
        fixed = [line for path, line in changes.items() if _is_fixed(path)]
        if fixed:
            raise UserError(
                "\n".join(
                    [
                        f"the run in {self.path} cannot be resumed with other settings of these:",
                        *(f"- {line}" for line in fixed),
                        "set them as they were, or start another run with --run_dir",
                    ]
                )
            )
        return list(changes.values())

    def write_config(self, config: Config) -> None:
        """Keeps what the run is started, or goes on, with."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(dump_config(config), encoding="utf-8")


# What the weights mean, and which example comes next. The text itself has a fingerprint.
_FIXED = {"seed", "data.sequence_length", "data.held_out_percent", "training.batch_size"}
# The model is its weights; how they are computed with may change.
_FREE_OF_MODEL = {
    f"model.{name}" for name in ("dropout", "attention_dropout", "attention", "dtype")
}
# Where the text lies is no property of the run, nor is its name.
_UNSAID = {"name", "data.path"}


def _is_fixed(path: str) -> bool:
    return path in _FIXED or (path.startswith("model.") and path not in _FREE_OF_MODEL)


def _changes(before: Any, after: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Path and description of every setting that differs."""
    for field in dataclasses.fields(before):
        path = f"{prefix}{field.name}"
        old, new = getattr(before, field.name), getattr(after, field.name)
        if dataclasses.is_dataclass(old):
            yield from _changes(old, new, f"{path}.")
        elif old != new and path not in _UNSAID:
            yield path, f"{path} was {old!r} and is {new!r}"
