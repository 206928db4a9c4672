"""The program, as it is run: what it prints, what it leaves, and how it goes on."""

import json
import signal

import pytest
import yaml

from tests.train.settings import write_config, write_text
from train.config import load_config
from train.data import TrainingBatches
from train.pretrain import main


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def config(tmp_path_factory, text):
    return write_config(tmp_path_factory.mktemp("config"), data={"path": [str(text)]})


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, config):
    """The folder of a run that was never interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    assert main([str(config), "--run_dir", str(folder)]) == 0
    return folder


def metrics_of(folder):
    """Every number of a run by step and name, but for the speed."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        (line["step"], name): value
        for line in map(json.loads, lines)
        for name, value in line.items()
        if name not in ("step", "tokens_per_second")
    }


def interrupt_at(step, monkeypatch, number=signal.SIGINT):
    """Has the program receive a signal while it fetches the batch of a step."""
    fetch = TrainingBatches.__next__
    count = 0

    def fetch_and_signal(batches):
        nonlocal count
        count += 1
        if count == step:
            signal.raise_signal(number)
        return fetch(batches)

    monkeypatch.setattr(TrainingBatches, "__next__", fetch_and_signal)


def test_a_run_leaves_its_config_its_metrics_and_its_latest_checkpoints(unbroken, config, text):
    resolved = yaml.safe_load((unbroken / "config.yaml").read_text(encoding="utf-8"))
    assert resolved["data"] == {
        "path": [str(text)],
        "sequence_length": 16,
        "held_out_percent": 5,
    }
    assert load_config(unbroken / "config.yaml") == load_config(config)
    metrics = metrics_of(unbroken)
    training = {"loss", "bits_per_byte", "learning_rate", "gradient_norm"}
    held_out = {"eval_loss", "eval_bits_per_byte"}
    for step in range(1, 9):
        names = {name for number, name in metrics if number == step}
        assert names == (training | held_out if step in (4, 8) else training)
    assert metrics[8, "bits_per_byte"] == pytest.approx(metrics[8, "loss"] * 1.442695)
    assert metrics[8, "eval_loss"] < metrics[4, "eval_loss"] < metrics[1, "loss"]
    assert sorted(path.name for path in (unbroken / "checkpoints").iterdir()) == ["6", "8"]


def test_the_plan_stands_before_the_first_step(tmp_path, config, capsys):
    assert main([str(config), "--run_dir", str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    plan, progress = output.split("step 1/8")
    for words in (
        "fingerprint",
        "devices  4 x cpu",
        "1f1b",
        "ticks",
        "bubble",
        "memory",
        "stage",
        "optimizer",
    ):
        assert words in plan
    for words in ("bits/byte", "tok/s", "lr ", "left", "held-out loss", "done: 8"):
        assert words in progress


@pytest.mark.parametrize("step", [1, 3, 6], ids=lambda step: f"at-{step}")
def test_an_interrupted_run_goes_on_with_the_very_same_numbers(
    tmp_path, config, unbroken, monkeypatch, capsys, step
):
    command = [str(config), "--run_dir", str(tmp_path / "run")]
    with monkeypatch.context() as patches:
        interrupt_at(step, patches)
        assert main(command) == 130
    output = capsys.readouterr().out
    assert f"SIGINT: stopped after step {step}, saved in" in output
    assert "--resume goes on (exit status 130)" in output
    assert max(number for number, _ in metrics_of(tmp_path / "run")) == step
    assert main([*command, "--resume"]) == 0
    assert f"resumed after step {step}" in capsys.readouterr().out
    assert metrics_of(tmp_path / "run") == metrics_of(unbroken)


def test_sigterm_saves_too(tmp_path, config, monkeypatch, capsys):
    interrupt_at(2, monkeypatch, signal.SIGTERM)
    assert main([str(config), "--run_dir", str(tmp_path / "run")]) == 143
    assert "SIGTERM: stopped after step 2, saved" in capsys.readouterr().out
    assert (tmp_path / "run" / "checkpoints" / "2").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_a_run_goes_on_with_another_number_of_stages(
    tmp_path, config, unbroken, monkeypatch, capsys, stages
):
    command = [str(config), "--run_dir", str(tmp_path / "run")]
    with monkeypatch.context() as patches:
        interrupt_at(3, patches)
        assert main(command) == 130
    other = ["--mesh.pipe", str(stages), "--pipeline.schedule", "gpipe"]
    assert main([*command, *other, "--resume"]) == 0
    assert f"mesh.pipe was 4 and is {stages}" in capsys.readouterr().out
    assert metrics_of(tmp_path / "run") == pytest.approx(metrics_of(unbroken), rel=1e-5)


def test_a_run_that_was_killed_repeats_the_steps_after_its_checkpoint(
    tmp_path, config, unbroken, monkeypatch
):
    class Killed(BaseException):
        """Ends the program without any of its own words."""

    fetch = TrainingBatches.__next__
    count = 0

    def fetch_or_die(batches):
        nonlocal count
        count += 1
        if count == 6:
            raise Killed
        return fetch(batches)

    command = [str(config), "--run_dir", str(tmp_path / "run")]
    with monkeypatch.context() as patches:
        patches.setattr(TrainingBatches, "__next__", fetch_or_die)
        with pytest.raises(Killed):
            main(command)
    assert (5, "loss") in metrics_of(tmp_path / "run")
    assert main([*command, "--resume"]) == 0
    assert metrics_of(tmp_path / "run") == metrics_of(unbroken)


def test_resuming_a_finished_run_does_nothing(unbroken, config, capsys):
    before = metrics_of(unbroken)
    assert main([str(config), "--run_dir", str(unbroken), "--resume"]) == 0
    assert "resumed after step 8" in capsys.readouterr().out
    assert metrics_of(unbroken) == before


def refused(arguments, capsys):
    """The message of a program that ends with status 2."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    return error


def test_a_second_run_in_the_same_folder_is_refused(unbroken, config, capsys):
    error = refused([str(config), "--run_dir", str(unbroken)], capsys)
    assert "is not empty; go on with that run with --resume" in error


def test_another_text_is_refused(unbroken, config, tmp_path, capsys):
    other = write_text(tmp_path, num_lines=401)
    error = refused(
        [str(config), "--run_dir", str(unbroken), "--resume", "--data.path", str(other)], capsys
    )
    assert "was trained on another text" in error
    assert "start another run with --run_dir" in error


def test_another_model_is_refused(unbroken, config, capsys):
    error = refused(
        [str(config), "--run_dir", str(unbroken), "--resume", "--model.width", "16"], capsys
    )
    assert "model.width was 8 and is 16" in error


def test_a_checkpoint_of_another_model_is_refused(unbroken, config, tmp_path, capsys):
    # As if someone had copied the checkpoints of another run.
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoints").symlink_to(unbroken / "checkpoints")
    wider = ["--run_dir", str(folder), "--model.width", "16"]
    resolved = (unbroken / "config.yaml").read_text(encoding="utf-8")
    (folder / "config.yaml").write_text(
        resolved.replace("width: 8\n", "width: 16\n"), encoding="utf-8"
    )
    error = refused([str(config), *wider, "--resume"], capsys)
    assert "is of another model or optimizer" in error
    assert "- params/blocks/attention/query/kernel is float32[4, 8, 8], and " in error


def test_fewer_steps_than_were_done_are_refused(unbroken, config, capsys):
    error = refused(
        [str(config), "--run_dir", str(unbroken), "--resume", "--training.steps", "7"], capsys
    )
    assert "has done 8 steps already, and training.steps=7; ask for more" in error


def test_a_run_without_a_checkpoint_cannot_be_resumed(unbroken, config, tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_bytes((unbroken / "config.yaml").read_bytes())
    error = refused([str(config), "--run_dir", str(folder), "--resume"], capsys)
    assert "has no checkpoint to resume from" in error
    assert f"remove the folder (rm -r {folder})" in error


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--mesh.pipe", "16"], "takes 16 devices; found 8"),
        (["--mesh.pipe", "5"], "4 layers for 5 stages"),
        (["--data.path", "nowhere"], "nowhere does not exist"),
        (["--resume"], "there is no run in"),
        (["--data.sequence_length", "32"], "is longer than model.max_sequence_length=16"),
    ],
    ids=["devices", "layers", "text", "resume", "sequence"],
)
def test_what_cannot_start_leaves_no_folder(tmp_path, config, capsys, extra, message):
    folder = tmp_path / "run"
    assert message in refused([str(config), "--run_dir", str(folder), *extra], capsys)
    assert not folder.exists()


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_run(tmp_path, config, capsys):
    error = refused(
        [
            str(config),
            *("--run_dir", str(tmp_path / "run")),
            *("--optimizer.learning_rate", "1e30", "--optimizer.warmup_steps", "0"),
        ],
        capsys,
    )
    assert "the loss of step" in error
    assert "resume from the last checkpoint with a lower optimizer.learning_rate" in error


def test_ctrl_c_before_the_first_step_has_nothing_to_save(tmp_path, config, monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("train.pretrain.load_corpus", interrupt)
    assert main([str(config), "--run_dir", str(tmp_path / "run")]) == 130
    assert "interrupted before the first step, nothing to save" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
