"""A whole run as a value: read from YAML, changed from the command line, checked with its path.

    python -m train.pretrain configs/gpt_tiny.yaml --optimizer.learning_rate 1e-3 --mesh.pipe 2

The file and the command line go through the same checks, every one of them before jax starts. What
a run was started with, all defaults written out, is kept in its folder as `config.yaml`, which is
again a file for the command line.
"""

import dataclasses
import difflib
import json
import pathlib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
import tyro
import yaml

from jaxpipe.schedule import schedule_names
from jaxpipe.schedule.names import schedule_options
from models.config import GPTConfig
from train.user_error import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text.

    Attributes:
        path: UTF-8 files, or folders of such files; none for the source text of Python itself.
        sequence_length: Bytes in one example.
        held_out_percent: How many files of a hundred are kept for evaluation.
    """

    path: tuple[str, ...] = ()
    sequence_length: int = 128
    held_out_percent: int = 5

    def __post_init__(self) -> None:
        """Checks the sizes."""
        _at_least(self, 1, "sequence_length")
        if not 1 <= self.held_out_percent <= 50:
            raise ValueError(
                f"held_out_percent={self.held_out_percent} must be 1 to 50; 5 is usual"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The devices: `pipe * data` of them.

    Attributes:
        pipe: Stages of the pipeline.
        data: Replicas of the pipeline, each taking its share of the batch.
        simulated_devices: How many CPU devices jax simulates where it finds no accelerator;
            None leaves that to jax (one).
    """

    pipe: int = 4
    data: int = 1
    simulated_devices: int | None = None

    def __post_init__(self) -> None:
        """Checks the sizes."""
        _at_least(self, 1, "pipe", "data")
        if self.simulated_devices is not None:
            _at_least(self, 1, "simulated_devices")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How a step runs.

    Attributes:
        schedule: What runs when, by the name of its paper; `jaxpipe schedule --help` lists them.
        num_microbatches: Parts of the batch that follow one another through the stages.
        num_chunks: Stages of every device, for a schedule that leaves this open, such as
            `interleaved_1f1b`; None for its default.
        remat: What the backward recomputes: `none`, everything that is no matrix product
            (`selective`), all but the stage's input (`full`), or that for all microbatches but the
            last one (`except_last`).
        remat_stages: With `full` and `except_last`, the stages that recompute; None for all.
        slices: Cuts every sequence into slices of consecutive tokens: how many, the length of each,
            or `auto` for lengths that suit the model and the pipeline; `python -m train.slice`
            measures them. None leaves it to the schedule.
    """

    schedule: str = "1f1b"
    num_microbatches: int = 8
    num_chunks: int | None = None
    remat: Literal["none", "selective", "full", "except_last"] = "selective"
    remat_stages: tuple[int, ...] | None = None
    slices: int | tuple[int, ...] | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        """Checks the sizes and the names."""
        _at_least(self, 1, "num_microbatches")
        if self.num_chunks is not None:
            _at_least(self, 1, "num_chunks")
        if self.schedule not in schedule_names():
            near = difflib.get_close_matches(self.schedule, schedule_names(), n=1, cutoff=0.0)
            raise ValueError(
                f"schedule={self.schedule!r} is unknown; the nearest is {near[0]!r}. All: "
                f"{', '.join(schedule_names())}"
            )
        if self.num_chunks is not None and "num_chunks" not in schedule_options(self.schedule):
            raise ValueError(
                f"num_chunks={self.num_chunks} is no option of schedule {self.schedule!r}; leave "
                "it out, or use 'interleaved_1f1b'"
            )
        lengths = self.slices if isinstance(self.slices, tuple) else (self.slices,)
        if not lengths or any(isinstance(each, int) and each < 1 for each in lengths):
            raise ValueError(
                f"slices={self.slices} must be 1 or more slices, of 1 or more tokens each, or "
                "'auto'"
            )
        if self.remat_stages is not None and self.remat not in ("full", "except_last"):
            raise ValueError(
                f"remat_stages={list(self.remat_stages)} says which stages recompute, but "
                f"remat={self.remat!r} recomputes none; use remat='full'"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with a warm-up and a cosine.

    Attributes:
        learning_rate: The highest, reached after the warm-up.
        warmup_steps: Steps of a linear rise to it.
        final_learning_rate_ratio: The last learning rate by the highest.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of their squares.
        epsilon: Added to the root of the latter.
        weight_decay: Per step, times the learning rate; vectors (norms, biases) are left alone.
        max_gradient_norm: Gradients of all stages together are scaled down to this norm.
    """

    learning_rate: float = 1e-3
    warmup_steps: int = 0
    final_learning_rate_ratio: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        _at_least(self, 0, "warmup_steps", "weight_decay")
        for name in ("learning_rate", "epsilon", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be in [0, 1)")
        if not 0 <= self.final_learning_rate_ratio <= 1:
            raise ValueError(
                f"final_learning_rate_ratio={self.final_learning_rate_ratio} must be in [0, 1]"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, and what is said and kept on the way.

    Attributes:
        steps: Optimizer steps.
        batch_size: Examples of a step, over all replicas.
        log_every: Steps between lines of metrics.
        eval_every: Steps between held-out losses; there is one at the end in any case.
        eval_batches: Batches of a held-out loss, always the same ones.
        checkpoint_every: Steps between checkpoints; there is one at the end in any case.
        keep_checkpoints: How many of the latest checkpoints are kept.
    """

    steps: int
    batch_size: int = 16
    log_every: int = 10
    eval_every: int = 100
    eval_batches: int = 16
    checkpoint_every: int = 100
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        """Checks the sizes."""
        _at_least(self, 1, *(field.name for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A run.

    Attributes:
        name: Name of the run; its folder is `runs/NAME` unless `--run_dir` says otherwise.
        model: The shape of the GPT.
        training: How long, and what is said and kept on the way.
        data: The text.
        mesh: The devices.
        pipeline: How a step runs.
        optimizer: AdamW with a warm-up and a cosine.
        seed: Decides the initial weights, the order of the data and dropout.
    """

    name: str
    model: GPTConfig
    training: TrainingConfig
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    pipeline: PipelineConfig = dataclasses.field(default_factory=PipelineConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks what must fit together."""
        slices, length = self.pipeline.slices, self.data.sequence_length
        if isinstance(slices, tuple) and sum(slices) != length:
            raise ValueError(
                f"pipeline.slices={list(slices)} sum to {sum(slices)} tokens, but "
                f"data.sequence_length={length}; change one of them, or use slices: auto"
            )
        if isinstance(slices, int) and slices > length:
            raise ValueError(
                f"pipeline.slices={slices} are more than the data.sequence_length={length} tokens "
                "that there are to cut; use fewer"
            )
        if self.data.sequence_length > self.model.max_sequence_length:
            raise ValueError(
                f"data.sequence_length={self.data.sequence_length} is longer than "
                f"model.max_sequence_length={self.model.max_sequence_length}; shorten the one or "
                "raise the other"
            )
        if rest := self.training.batch_size % self.mesh.data:
            below = self.training.batch_size - rest
            nearest = " or ".join(str(size) for size in (below, below + self.mesh.data) if size)
            raise ValueError(
                f"training.batch_size={self.training.batch_size} cannot be split over mesh.data="
                f"{self.mesh.data} replicas; use a batch of {nearest}"
            )
        if self.optimizer.warmup_steps >= self.training.steps:
            raise ValueError(
                f"optimizer.warmup_steps={self.optimizer.warmup_steps} must be fewer than "
                f"training.steps={self.training.steps}; a tenth of them is usual"
            )
        if self.model.vocab_size < 256:
            raise ValueError(
                f"model.vocab_size={self.model.vocab_size} is too small: tokens are bytes, so use "
                "256 or more"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """What was said on the command line.

    Attributes:
        run_dir: Folder of the run: its configuration, metrics and checkpoints.
        resume: Go on from the last checkpoint in the run folder.
        config: The run.
    """

    run_dir: str | None = None
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    config: Annotated[Config, tyro.conf.arg(name="")]

    @property
    def run_folder(self) -> pathlib.Path:
        """Where the run's files are."""
        return pathlib.Path(self.run_dir or f"runs/{self.config.name}")


def parse_arguments(program: str, arguments: Sequence[str]) -> Arguments:
    """Reads the config file named first, then lays the rest of the command line over it.

    Raises:
        UserError: No file is named, it holds no valid run, or the settings do not fit together.
        SystemExit: The command line holds an unknown setting or a wrong value (status 2), or asks
            for help (status 0).
    """
    if not arguments or arguments[0].startswith("-"):
        raise UserError(
            f"name a config file first: python -m {program} CONFIG [--run_dir DIR] [--resume] "
            f"[--a.b VALUE ...]; python -m {program} CONFIG --help lists every setting"
        )
    file, *rest = arguments
    default = Arguments(config=load_config(pathlib.Path(file)))
    try:
        return tyro.cli(
            Arguments,
            prog=f"python -m {program} {file}",
            description=f"Settings not given here are those of {file}.",
            default=default,
            args=rest,
            use_underscores=True,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def load_config(path: pathlib.Path) -> Config:
    """The run that a YAML file describes.

    Raises:
        UserError: Lists everything that is wrong in the file, each with its path.
    """
    if not path.is_file():
        others = [str(other) for other in sorted(path.parent.glob("*.yaml"))]
        nearest = difflib.get_close_matches(str(path), others, n=1, cutoff=0.0)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UserError(f"config file {path} does not exist{hint}")
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(tree, Mapping):
        raise UserError(f"{path} must hold settings (name: ..., model: ...), not {tree!r}")
    problems = list(_unknown_keys(tree, Config))
    if not problems:
        try:
            # Strict JSON: "3" is no number and true is no 1, but a list may be a tuple.
            text = json.dumps(_path_as_list(tree), default=str)
            return pydantic.TypeAdapter(Config).validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            problems = [_in_words(problem) for problem in error.errors()]
    raise UserError("\n".join([f"{path} describes no run:", *(f"- {text}" for text in problems)]))


def dump_config(config: Config) -> str:
    """The run as YAML, with every default written out."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number: YAML 1.1 wants 1.0e-3 and reads the former as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _path_as_list(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Allows `path: my_text/` for `path: [my_text/]`."""
    data = tree.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("path"), str):
        return {**tree, "data": {**data, "path": [data["path"]]}}
    return tree


def _unknown_keys(tree: Mapping[Any, Any], kind: type, prefix: str = "") -> Iterator[str]:
    """A line for every key of `tree` that `kind` has no field for, with the nearest one it has."""
    fields = typing.get_type_hints(kind)
    for key, value in tree.items():
        if key not in fields:
            nearest = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.0)[0]
            yield f"{prefix}{key} is no setting; the nearest is {prefix}{nearest}"
        elif dataclasses.is_dataclass(fields[key]) and isinstance(value, Mapping):
            yield from _unknown_keys(value, fields[key], f"{prefix}{key}.")


def _in_words(problem: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            return f"{path} is missing"
        case "value_error":
            return f"{path}: {problem['ctx']['error']}" if path else str(problem["ctx"]["error"])
        case _:
            rule = problem["msg"].removeprefix("Input should be ")
            return f"{path}={problem['input']!r} must be {rule}"


def _at_least(config: object, lowest: int, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= lowest:
            raise ValueError(f"{name}={getattr(config, name)} must be at least {lowest}")
