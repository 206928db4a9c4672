"""`python -m train.aot`: does a run fit on machines that are not there?"""

import importlib.util
import json
import re

import pytest

from jaxpipe.aot import DoesNotFitError
from tests.runtime.gpu_topology import h100_devices
from train.aot import main

CONFIG = "configs/gpt_tiny.yaml"

# Programs for machines that are not there can be written to the compilation cache, but not read.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")


def test_the_report_of_a_config(capsys):
    h100_devices(1)  # skips where there is no compiler
    assert main([CONFIG, "--topology", "h100:1x1x4"]) == 0
    text = capsys.readouterr().out
    assert "memory      " in text  # what is predicted comes first
    assert text.index("memory      ") < text.index("compiled for  4 x NVIDIA H100")
    assert "2 of 2 inside loops travel beside computation" in text
    ratio = re.search(r"temporaries .* predicted .* \((\d\.\d\d) of that\)", text)
    assert ratio is not None
    assert 0.9 <= float(ratio[1]) <= 1.1


@pytest.mark.slow
def test_predicted_and_compiled_bytes_of_gpt2(capsys):
    h100_devices(1)
    assert main(["configs/gpt2_small.yaml", "--topology", "h100:1x1x4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bytes"]
    assert 0.9 <= found["temporaries"] / found["predicted_temporaries"] <= 1.1


def test_what_does_not_fit_ends_with_status_1(capsys):
    h100_devices(1)
    overrides = ["--usable", "0.0001", "--mesh.pipe", "2"]
    assert main([CONFIG, "--topology", "h100:1x1x2", "--json", *overrides]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"]
    assert {each["kind"] for each in found["collectives"] if each["in_loop"]} == {
        "collective-permute"
    }


def test_a_compiler_that_gives_up_ends_with_status_1(monkeypatch, capsys):
    h100_devices(1)

    def give_up(*arguments: object, **settings: object) -> None:
        raise DoesNotFitError("DOES NOT FIT on h100:1x1x4: out of memory")

    monkeypatch.setattr("train.aot.compile_run", give_up)
    command = [CONFIG, "--topology", "h100:1x1x4"]
    assert main(command) == 1
    assert "DOES NOT FIT on h100:1x1x4: out of memory" in capsys.readouterr().out
    assert main([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["topology"], found["fits"]) == ("h100:1x1x4", False)


def test_without_the_compiler_nothing_else_is_read(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["configs/none.yaml", "--topology", "v5e:2x2"]) == 2
    assert "pip install libtpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CONFIG, "--topology", "h100:8"], "a topology of GPUs is slices x hosts x devices"),
        (
            [CONFIG, "--topology", "h100:1x1x8"],
            "mesh.pipe=4 x mesh.data=1 is a mesh of 4 devices, but h100:1x1x8 has 8; use "
            "--mesh.data 2, or a topology of 4 devices",
        ),
        (
            [CONFIG, "--topology", "h100:1x1x3"],
            "use --mesh.pipe 3 --mesh.data 1, or a topology of 4 devices",
        ),
        (
            [CONFIG, "--topology", "h100:1x1x4", "--usable", "75"],
            "usable=75.0 must be above 0 and at most 1",
        ),
        (["--topology", "h100:1x1x4"], "name a config file first: python -m train.aot CONFIG"),
    ],
)
def test_what_cannot_be_compiled(capsys, arguments, message):
    h100_devices(1)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
