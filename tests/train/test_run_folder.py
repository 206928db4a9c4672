import pytest

from tests.train.settings import tiny_config
from train.config import load_config
from train.run_folder import RunFolder
from train.user_error import UserError


def test_an_empty_or_missing_folder_is_free_for_a_new_run(tmp_path):
    RunFolder(tmp_path).check_fresh()
    RunFolder(tmp_path / "new").check_fresh()
    assert not (tmp_path / "new").exists()


def test_the_config_is_kept_so_that_it_reads_back(tmp_path):
    config = tiny_config(tmp_path)
    folder = RunFolder(tmp_path / "runs" / "new")
    folder.write_config(config)
    assert load_config(folder.config_file) == config
    assert folder.check_resumable(config) == []


def test_a_folder_with_something_in_it_is_refused_with_the_ways_out(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_config(tiny_config(tmp_path))
    with pytest.raises(UserError) as caught:
        folder.check_fresh()
    assert str(caught.value) == (
        f"{folder.path} is not empty; go on with that run with --resume, put this one elsewhere "
        f"with --run_dir, or remove the folder (rm -r {folder.path})"
    )


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match="run is a file; give the run a folder with --run_dir"):
        RunFolder(tmp_path / "run").check_fresh()


def test_where_there_is_no_run_nothing_can_be_resumed(tmp_path):
    with pytest.raises(UserError, match=r"there is no run in .* to resume \(no config.yaml\)"):
        RunFolder(tmp_path).check_resumable(tiny_config(tmp_path))


def test_what_a_layout_or_an_optimizer_changes_is_said_and_allowed(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_config(tiny_config(tmp_path))
    changes = folder.check_resumable(
        tiny_config(
            tmp_path,
            name="other",
            data={"path": ["moved"]},
            mesh={"pipe": 2},
            model={"dropout": 0.2},
            optimizer={"learning_rate": 0.5},
        )
    )
    assert changes == [
        "model.dropout was 0.1 and is 0.2",
        "mesh.pipe was 4 and is 2",
        "optimizer.learning_rate was 0.01 and is 0.5",
    ]


def test_another_model_or_order_of_the_data_is_refused(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_config(tiny_config(tmp_path))
    with pytest.raises(UserError) as caught:
        folder.check_resumable(
            tiny_config(
                tmp_path, model={"width": 16}, seed=3, training={"batch_size": 8, "steps": 9}
            )
        )
    message = str(caught.value)
    assert "cannot be resumed with other settings of these" in message
    assert "- model.width was 8 and is 16" in message
    assert "- training.batch_size was 4 and is 8" in message
    assert "- seed was 0 and is 3" in message
    assert "training.steps" not in message
    assert message.endswith("set them as they were, or start another run with --run_dir")
