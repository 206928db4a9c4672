"""The `jaxpipe` command."""

import json
import subprocess
import sys

import pytest

from jaxpipe import cli
from jaxpipe.lower import lower
from jaxpipe.schedule import (
    Costs,
    fill_weights,
    from_csv,
    from_json,
    from_torch_csv,
    make_schedule,
    schedule_names,
    share_head,
    to_csv,
)


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    status = cli.main(line.split())
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("name", schedule_names())
def test_every_schedule_is_drawn(capsys, name):
    status, out, err = run(capsys, f"schedule {name} --devices 2 --microbatches 4")
    assert (status, err) == (0, "")
    assert out == f"{make_schedule(name, 2, 4)}\n"


def test_formats(capsys):
    schedule = make_schedule("interleaved_1f1b", 2, 4, num_chunks=2, group_size=3)
    line = "schedule interleaved_1f1b --devices 2 --microbatches 4 --chunks 2 --group 3 --format "
    assert run(capsys, line + "csv")[1] == to_csv(schedule)
    assert from_json(run(capsys, line + "json")[1]) == schedule
    assert from_torch_csv(run(capsys, line + "torch-csv")[1]).rows == schedule.rows
    assert "<svg" in run(capsys, line + "svg")[1]
    assert "traceEvents" in json.loads(run(capsys, line + "trace")[1])


def test_csv_has_a_header_and_a_row_per_device(capsys):
    _, out, _ = run(capsys, "schedule 1f1b --devices 2 --microbatches 2 --format csv")
    assert out.splitlines() == [
        "# jaxpipe-schedule 1 devices=2 microbatches=2 placement=loop stages=2 name=1f1b",
        "0F0,0F1,0BW0,0BW1",
        "1F0,1BW0,1F1,1BW1",
    ]


def test_files_are_written(capsys, tmp_path):
    for ending in ("png", "csv"):
        path = tmp_path / f"picture.{ending}"
        line = f"schedule 1f1b --devices 2 --microbatches 2 --format {ending} --out {path}"
        assert run(capsys, line) == (0, "", "")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert from_csv((tmp_path / "picture.csv").read_text()) == make_schedule("1f1b", 2, 2)


def test_a_cap_moves_w_into_idle_time(capsys):
    line = "schedule interleaved_1f1b --devices 4 --microbatches 8 --cap 11 --format csv"
    expected = fill_weights(make_schedule("interleaved_1f1b", 4, 8), activation_cap=11)
    assert from_csv(run(capsys, line)[1]) == expected


def test_simulate_prints_all_numbers(capsys):
    _, out, _ = run(capsys, "simulate 1f1b --devices 4 --microbatches 8")
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    assert lines["makespan"].strip() == "33"
    assert lines["peak live to input gradient"].strip() == "4 3 2 1"
    line = "simulate 1f1b --devices 4 --microbatches 8 --forward 2 --backward-input 3 --hop 0.5"
    numbers = json.loads(run(capsys, line + " --json")[1])
    assert numbers["makespan"] > 8 * 6 + 3 * 6
    assert numbers["messages_forward"] == [8, 8, 8, 0]


def test_simulate_reads_files(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(to_csv(make_schedule("zbv", 2, 4)))
    numbers = json.loads(run(capsys, f"simulate {path} --json")[1])
    assert (numbers["schedule"], numbers["makespan"]) == ("zbv", 12.5)
    path.write_text(to_csv(make_schedule("zbv", 2, 4)).split("\n", 1)[1])
    status, _, err = run(capsys, f"simulate {path}")
    assert status == 2
    assert "give the placement" in err
    numbers = json.loads(run(capsys, f"simulate {path} --placement v --json")[1])
    assert (numbers["schedule"], numbers["makespan"]) == ("mine", 12.5)


def test_a_file_states_its_own_sizes(capsys, tmp_path):
    """Sizes beside a file used to be ignored, and the numbers were taken for those of the sizes."""
    path = tmp_path / "mine.csv"
    path.write_text(to_csv(make_schedule("1f1b", 2, 4)))
    for option in ("--devices 4", "--microbatches 8", "--chunks 2"):
        status, out, err = run(capsys, f"simulate {path} {option}")
        assert (status, out) == (2, "")
        assert f"states its sizes itself; leave out {option.split()[0]}" in err


def test_a_file_that_is_no_text_is_named(capsys, tmp_path):
    path = tmp_path / "picture.csv"
    path.write_bytes(b"\x89PNG")
    for command in ("simulate", "validate"):
        assert f"{path} is no text; give a .csv or .json" in run(capsys, f"{command} {path}")[2]


@pytest.mark.parametrize("barriers", [1, 2])
def test_the_head_is_shared_out(capsys, barriers):
    line = f"schedule 1f1b --devices 2 --microbatches 4 --head-barriers {barriers} --head 0.5"
    expected = share_head(make_schedule("1f1b", 2, 4), num_barriers=barriers, costs=Costs(head=0.5))
    assert from_csv(run(capsys, f"{line} --format csv")[1]) == expected


def test_compare_lists_all_and_says_what_it_left_out(capsys):
    status, out, _ = run(capsys, "compare --devices 2 --microbatches 3 --chunks 3")
    assert status == 0
    listed = {line.split()[0] for line in out.splitlines()[1:] if not line.startswith("left out")}
    left_out = {line.split()[2].strip(":") for line in out.splitlines() if "left out" in line}
    assert listed | left_out | {"zb1p"} == set(schedule_names())
    rows = json.loads(run(capsys, "compare --devices 2 --microbatches 4 --json")[1])
    ticks = {row["schedule"]: row["lockstep_ticks"] for row in rows}
    assert ticks["zb_h1"] == lower(make_schedule("zb_h1", 2, 4)).num_ticks == 10


def test_best_names_the_fastest_of_both_kinds(capsys):
    line = "best --devices 2 --microbatches 4 --chunks 1 --cap 2"
    status, out, _ = run(capsys, f"{line} --top 2")
    assert status == 0
    assert "fastest in the lockstep loop      1f1b + fill" in out
    assert "fastest on free-running devices   1f1b + fill" in out
    assert json.loads(run(capsys, f"{line} --json")[1])[0]["lockstep_cost"] == 13


def test_validate_accepts_what_is_valid(capsys, tmp_path):
    path = tmp_path / "good.csv"
    path.write_text(to_csv(make_schedule("1f1b", 2, 3)))
    status, out, _ = run(capsys, f"validate {path}")
    assert (status, out) == (0, f"{path}: valid: 2 devices, 2 stages, 3 microbatches\n")
    status, out, _ = run(capsys, f"validate {path} --cap 1")
    assert status == 1
    assert "2 activations are alive at once, and the cap is 1; issue backwards earlier" in out


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            "0F0,0BW0,0F1\n1F0,1BW0,1BW1,1F1\n",
            [
                "device 0: 0BW1 (or its B and W) is missing; add it to row 0",
                "device 1, column 2: 1BW1 stands before 1F1, which it waits for; move it behind "
                "column 3",
            ],
        ),
        (
            "0F0,zero\n1F0,1BW0,1X1\n",
            ["device 0, column 1: 'zero' is not a cell", "device 1, column 2: '1X1' is not a cell"],
        ),
    ],
    ids=["rules", "cells"],
)
def test_validate_lists_every_violation(capsys, tmp_path, rows, expected):
    path = tmp_path / "bad.csv"
    path.write_text(f"# jaxpipe-schedule 1 devices=2 microbatches=2 placement=loop\n{rows}")
    status, out, err = run(capsys, f"validate {path}")
    assert (status, err) == (1, "")
    lines = out.splitlines()
    assert len(lines) == len(expected) + 1
    for line, start in zip(lines, expected, strict=False):
        assert line.startswith(f"{path}: {start}")
    assert lines[-1] == f"{path}: 2 violations (devices and columns counted from 0)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("schedule 1f1 --devices 2 --microbatches 2", "no schedule '1f1'; did you mean '1f1b'?"),
        ("schedule gpipe --devices 0 --microbatches 2", "num_devices must be at least 1, but is 0"),
        ("schedule 1f1b --devices 2 --microbatches 2 --chunks 2", "1f1b takes no --chunks; it tak"),
        (
            "schedule looped_bfs --devices 2 --microbatches 2 --waves 2",
            "looped_bfs takes no --waves; it takes --chunks",
        ),
        ("schedule 1f1b --devices 2 --microbatches 2 --format png", "add --out FILE.png"),
        (
            "schedule 1f1b --devices 2 --microbatches 2 --out /nowhere/x",
            "No such file or directory",
        ),
        ("schedule 1f1b --devices 4 --microbatches 8 --cap 1", "activation_cap=1 is below the 4"),
        ("schedule 1f1b --devices 4 --microbatches 8 --hop -1", "costs must be finite and not neg"),
        ("simulate 1f1b", "a schedule needs --devices; add --devices 4, say"),
        ("simulate 1fb1", "there is no schedule '1fb1'; did you mean '1f1b'?"),
        ("simulate 1f1b --devices 2 --microbatches 2 --placement v", "--placement is for files"),
        ("simulate nowhere.csv", "there is no file 'nowhere.csv'; check the path"),
        ("validate nowhere.csv", "No such file or directory"),
        ("best --devices 2 --microbatches 4 --cap 0.1", "raise the cap to that"),
    ],
    ids=lambda value: value.split(" --format")[0].replace(" ", "_") if "--" in value else "",
)
def test_mistakes_get_a_line_and_no_traceback(capsys, line, message):
    status, out, err = run(capsys, line)
    assert (status, out) == (2, "")
    assert err.startswith(f"jaxpipe {line.split()[0]}: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command", ["", "schedule", "simulate", "compare", "best", "validate", "partition", "slice"]
)
def test_help_ends_with_an_example(capsys, command):
    with pytest.raises(SystemExit) as caught:
        cli.main([*command.split(), "--help"])
    assert caught.value.code == 0
    assert "Example: jaxpipe " in capsys.readouterr().out


def test_partition(capsys, tmp_path):
    status, out, _ = run(capsys, "partition 3,1,4,1,5,9,2,6 --stages 3 --json")
    assert status == 0
    assert json.loads(out) == {"bounds": [0, 5, 7, 8], "max": 14, "loads": [14, 11, 6]}
    path = tmp_path / "weights.txt"
    path.write_text("10\n1\n1\n1\n", encoding="utf-8")
    status, out, _ = run(capsys, f"partition {path} --stages 2 --speeds 5,1")
    assert status == 0
    assert out.splitlines() == [
        "heaviest stage 2.2, 4.8% above the mean 2.1",
        "stage 0            2.2  layers 0 to 1",
        "stage 1              2  layers 2 to 3",
    ]
    status, _, err = run(capsys, "partition 3,one --stages 1")
    assert status == 2
    assert "'3,one' is neither a file nor numbers" in err
    status, _, err = run(capsys, "partition 3,1 --stages 3")
    assert status == 2
    assert "2 layers can't fill 3 stages; use at most 2 stages" in err


def test_slice_prints_lengths_and_a_table(capsys):
    line = "slice --length 12 --stages 3 --cost l*(2*ctx+l+1)/2 --num-slices 3"
    status, out, _ = run(capsys, line)
    assert status == 0
    assert out.startswith("lengths  7 3 2\ntime     134\n")
    assert "3, planned  2 to 7" in out
    assert "1, equal        12" in out


def test_slice_reads_a_table_and_writes_json(capsys, tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("l,ctx,time\n64,0,3\n128,0,5\n64,64,4\n", encoding="utf-8")
    line = f"slice --length 128 --stages 4 --cost-table {path} --grid 64 --json"
    status, out, _ = run(capsys, line)
    found = json.loads(out)
    assert status == 0
    assert found["lengths"] == [64, 64]
    assert found["time"] == pytest.approx(3 + 4 + 3 * 4)
    path.write_text("l,ctx\n", encoding="utf-8")
    status, _, err = run(capsys, line)
    assert status == 2
    assert f"{path}: line 1: the header of a cost table" in err


def test_starts_without_jax():
    code = "import sys, jaxpipe.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reader_that_stops_reading_is_no_error():
    line = "-m jaxpipe.cli schedule gpipe --devices 64 --microbatches 512 --format csv"
    with subprocess.Popen(
        [sys.executable, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
