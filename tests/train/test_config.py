import dataclasses
import pathlib
import typing

import pytest
import yaml

from jaxpipe.schedule import schedule_names
from models.config import GPTConfig
from tests.train.settings import changed, tiny_config, write_config
from train.config import PipelineConfig, dump_config, load_config, parse_arguments
from train.user_error import UserError

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*.yaml")), ids=lambda path: path.name)
def test_every_config_of_the_repository_is_a_run_named_after_its_file(path):
    assert load_config(path).name == path.stem


def test_a_resolved_config_holds_every_default_and_reads_back_the_same(tmp_path):
    config = tiny_config(tmp_path, data={"path": ["a", "b"]})
    text = dump_config(config)
    again = tmp_path / "again.yaml"
    again.write_text(text, encoding="utf-8")
    assert load_config(again) == config
    assert yaml.safe_load(text) == _as_lists(dataclasses.asdict(config))


def _as_lists(tree):
    if isinstance(tree, dict):
        return {name: _as_lists(value) for name, value in tree.items()}
    return list(tree) if isinstance(tree, tuple) else tree


def test_the_model_is_the_config_of_the_model_itself(tmp_path):
    assert tiny_config(tmp_path).model == GPTConfig(**changed()["model"])


def test_an_exponent_without_a_point_is_a_number(tmp_path):
    path = write_config(tmp_path)
    text = path.read_text(encoding="utf-8").replace("learning_rate: 0.01", "learning_rate: 3e-4")
    path.write_text(text, encoding="utf-8")
    assert load_config(path).optimizer.learning_rate == 3e-4


def test_one_path_may_stand_alone(tmp_path):
    assert tiny_config(tmp_path, data={"path": "a b"}).data.path == ("a b",)


def test_the_schedules_of_a_config_are_those_of_the_library():
    choices = typing.get_args(typing.get_type_hints(PipelineConfig)["schedule"])
    assert set(choices) <= set(schedule_names())


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        pytest.param(
            {"modle": {}, "training": {"stps": 3}},
            [
                "- modle is no setting; the nearest is model",
                "- training.stps is no setting; the nearest is training.steps",
            ],
            id="unknown-keys",
        ),
        pytest.param(
            {"training": {"steps": "many"}, "seed": "0"},
            [
                "- training.steps='many' must be a valid integer",
                "- seed='0' must be a valid integer",
            ],
            id="wrong-types",
        ),
        pytest.param(
            {"pipeline": {"num_microbatches": True}},
            ["- pipeline.num_microbatches=True must be a valid integer"],
            id="true-is-not-one",
        ),
        pytest.param(
            {"pipeline": {"schedule": "1f2b"}},
            ["- pipeline: schedule='1f2b' is unknown; the nearest is '1f1b'. All: gpipe, 1f1b"],
            id="unknown-schedule",
        ),
        pytest.param(
            {"pipeline": {"schedule": "zbv", "num_chunks": 3}},
            ["num_chunks=3 is no option of schedule 'zbv'; leave it out"],
            id="an-option-of-another-schedule",
        ),
        pytest.param(
            {"pipeline": {"remat_stages": [0]}},
            ["remat_stages=[0] says which stages recompute, but remat='selective' recomputes none"],
            id="stages-that-do-not-recompute",
        ),
        pytest.param({"model": None}, ["- model is missing"], id="missing-model"),
        pytest.param({"model": 3}, ["- model=3 must be"], id="a-number-for-a-group"),
        pytest.param(
            {"model": {"num_heads": 3}},
            ["- model: GPTConfig does not describe a model", "width=8 is not a multiple"],
            id="impossible-model",
        ),
        pytest.param(
            {"pipeline": {"num_microbatches": 0}},
            ["- pipeline: num_microbatches=0 must be at least 1"],
            id="no-microbatches",
        ),
        pytest.param({"mesh": {"pipe": 0}}, ["- mesh: pipe=0 must be at least 1"], id="no-stages"),
        pytest.param(
            {"mesh": {"simulated_devices": 0}},
            ["- mesh: simulated_devices=0 must be at least 1"],
            id="no-devices",
        ),
        pytest.param(
            {"training": {"checkpoint_every": 0}},
            ["- training: checkpoint_every=0 must be at least 1"],
            id="no-interval",
        ),
        pytest.param(
            {"data": {"held_out_percent": 0}},
            ["- data: held_out_percent=0 must be 1 to 50; 5 is usual"],
            id="nothing-held-out",
        ),
        pytest.param(
            {"data": {"sequence_length": 0}},
            ["- data: sequence_length=0 must be at least 1"],
            id="empty-sequences",
        ),
        pytest.param(
            {"optimizer": {"learning_rate": 0.0}},
            ["- optimizer: learning_rate=0.0 must be above 0"],
            id="no-learning",
        ),
        pytest.param(
            {"optimizer": {"beta2": 1.0}},
            ["- optimizer: beta2=1.0 must be in [0, 1)"],
            id="beta",
        ),
        pytest.param(
            {"optimizer": {"final_learning_rate_ratio": 2.0}},
            ["- optimizer: final_learning_rate_ratio=2.0 must be in [0, 1]"],
            id="final-learning-rate",
        ),
        pytest.param(
            {"optimizer": {"weight_decay": -1.0}},
            ["- optimizer: weight_decay=-1.0 must be at least 0"],
            id="negative-decay",
        ),
        pytest.param(
            {"data": {"sequence_length": 32}},
            ["- data.sequence_length=32 is longer than model.max_sequence_length=16"],
            id="long-sequences",
        ),
        pytest.param(
            {"model": {"vocab_size": 100}},
            ["- model.vocab_size=100 is too small: tokens are bytes, so use 256 or more"],
            id="few-tokens",
        ),
        pytest.param(
            {"optimizer": {"warmup_steps": 8}},
            ["- optimizer.warmup_steps=8 must be fewer than training.steps=8"],
            id="nothing-but-warmup",
        ),
        pytest.param(
            {"mesh": {"data": 3}},
            [
                "- training.batch_size=4 cannot be split over mesh.data=3 replicas; use a batch "
                "of 3 or 6"
            ],
            id="batch-over-replicas",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_path(tmp_path, changes, lines):
    path = write_config(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path} describes no run:")
    for line in lines:
        assert line in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"name: [1", "is not YAML", id="syntax"),
        pytest.param(b"name: \xff", "is not YAML", id="encoding"),
        pytest.param(b"just text", "must hold settings (name: ..., model: ...)", id="scalar"),
        pytest.param(b"", "must hold settings", id="empty"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert message in str(caught.value)


def test_a_missing_file_is_answered_with_the_nearest_name(tmp_path):
    path = write_config(tmp_path)
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "tinny.yaml")
    assert f"tinny.yaml does not exist; did you mean {path}?" in str(caught.value)


def test_the_command_line_lies_over_the_file(tmp_path):
    path = write_config(tmp_path)
    arguments = parse_arguments(
        "train.pretrain",
        [str(path), "--optimizer.learning_rate", "3e-4", "--mesh.pipe", "2", "--resume"],
    )
    assert arguments.config.optimizer.learning_rate == 3e-4
    assert arguments.config.mesh.pipe == 2
    assert arguments.config.model.width == 8
    assert arguments.resume
    assert arguments.run_folder == pathlib.Path("runs/tiny")


def test_paths_and_the_run_folder_come_from_the_command_line(tmp_path):
    path = write_config(tmp_path)
    arguments = parse_arguments(
        "train.pretrain", [str(path), "--data.path", "a", "b", "--run_dir", "elsewhere"]
    )
    assert arguments.config.data.path == ("a", "b")
    assert arguments.run_folder == pathlib.Path("elsewhere")
    assert not arguments.resume


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--optimizer.learning_rat", "1"], "--optimizer.learning_rate"),
        (["--training.steps", "many"], "--training.steps"),
        (["--model.num_heads", "3"], "width=8 is not a multiple"),
        (["--training.log_every", "0"], "log_every=0 must be at least 1"),
    ],
    ids=["unknown", "wrong-type", "impossible", "out-of-range"],
)
def test_a_wrong_setting_on_the_command_line_ends_the_program(tmp_path, capsys, extra, message):
    path = write_config(tmp_path)
    with pytest.raises(SystemExit) as caught:
        parse_arguments("train.pretrain", [str(path), *extra])
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert message in " ".join((output.out + output.err).replace("│", " ").split())


def test_settings_that_do_not_fit_together_are_said_for_the_command_line_too(tmp_path):
    path = write_config(tmp_path)
    with pytest.raises(UserError, match="warmup_steps=2 must be fewer than training.steps=2"):
        parse_arguments("train.pretrain", [str(path), "--training.steps", "2"])


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["nothing", "help-without-a-file"])
def test_without_a_file_the_usage_is_said(arguments):
    with pytest.raises(UserError, match=r"name a config file first: python -m train.pretrain"):
        parse_arguments("train.pretrain", arguments)


def test_help_lists_every_setting_with_its_meaning(tmp_path, capsys):
    path = write_config(tmp_path)
    with pytest.raises(SystemExit) as caught:
        parse_arguments("train.pretrain", [str(path), "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--optimizer.max_gradient_norm" in text
    assert "Stages of the pipeline." in text
    assert "Go on from the last checkpoint" in text
