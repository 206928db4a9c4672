import io
import json

import pytest

from train.metrics import Clock, MetricsFile, Progress, bits_per_byte, duration


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_is_an_object_and_is_there_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, last_step=0) as metrics:
        metrics.write(1, loss=2.5)
        metrics.write(2, eval_loss=1.5)
        assert lines_of(path) == [{"step": 1, "loss": 2.5}, {"step": 2, "eval_loss": 1.5}]


def test_resuming_drops_the_lines_after_the_checkpoint_and_a_broken_last_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "lo', encoding="utf-8")
    with MetricsFile(path, last_step=2) as metrics:
        metrics.write(3, loss=0.5)
    assert lines_of(path) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 0.5}]


def test_a_guess_without_knowledge_costs_eight_bits():
    assert bits_per_byte(5.545177444479562) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.6, "1m00s"), (61, "1m01s"), (3599.9, "1h00m")]
)
def test_durations_are_rounded_before_they_are_split(seconds, text):
    assert duration(seconds) == text


def test_the_clock_leaves_out_what_came_before_a_restart(monkeypatch):
    now = iter([0.0, 100.0, 106.0, 107.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = Clock()  # at 0
    clock.count()
    clock.restart()  # at 100
    for _ in range(3):
        clock.count()
    assert clock.lap() == 2.0  # (106 - 100) / 3


def show(progress, step):
    progress.update(
        step, loss=1.0, tokens_per_second=12345.6, learning_rate=1e-3, seconds_left=75.0
    )


def test_progress_into_a_file_is_a_line_each():
    stream = io.StringIO()
    progress = Progress(num_steps=100, stream=stream)
    show(progress, 1)
    progress.say("held out")
    assert stream.getvalue() == (
        "step   1/100  loss 1.000  1.443 bits/byte  12,346 tok/s"
        "  lr 1.0e-03  1m15s left\nheld out\n"
    )


def test_progress_never_wraps_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    stream.isatty = lambda: True
    show(Progress(num_steps=100, stream=stream), 1)
    assert stream.getvalue() == "\rstep   1/100  loss 1.000  1.443 bits/by"


def test_progress_on_a_terminal_stays_on_one_line_until_something_is_said():
    stream = io.StringIO()
    stream.isatty = lambda: True
    progress = Progress(num_steps=100, stream=stream)
    show(progress, 1)
    show(progress, 2)
    assert "\n" not in stream.getvalue()
    progress.say("held out")
    assert stream.getvalue().endswith("left\nheld out\n")
    assert stream.getvalue().count("\r") == 2
