"""What `make` says on a machine where it cannot set things up."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Each stands for a Python that answers `-c PROGRAM`, and `-m MODULE` where it comes to that.
PYTHONS = {
    "missing": None,
    "shim": "exit 127",
    "old": """
        case "$2" in
            *version_info*) exit 1 ;;
            *python_version*) echo 3.9.18 ;;
        esac""",
    "without-venv": """
        case "$2" in
            *"import ensurepip, venv"*) exit 1 ;;
            *"%d.%d"*) echo 3.11 ;;
        esac""",
}


@pytest.mark.parametrize(
    ("python", "lines"),
    [
        (
            "missing",
            [
                "does not start. jaxpipe needs Python 3.11 or newer",
                "apt-get install python3 python3-venv",
            ],
        ),
        ("shim", ["does not start. jaxpipe needs Python 3.11 or newer"]),
        ("old", ["is Python 3.9.18, and jaxpipe needs 3.11 or newer: say make PYTHON="]),
        (
            "without-venv",
            [
                "Python 3.11 is here but cannot make virtual environments",
                "apt-get install python3-venv (or python3.11-venv)",
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_is_said_with_what_to_install(tmp_path, python, lines):
    path = tmp_path / "python3"
    if PYTHONS[python] is not None:
        path.write_text(f"#!/bin/sh\n{PYTHONS[python]}\n", encoding="utf-8")
        path.chmod(0o755)
    venv = tmp_path / "venv"
    result = subprocess.run(
        ["bash", "scripts/setup.sh", str(path), str(venv), "test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    for line in lines:
        assert line in result.stderr
    assert not venv.exists()


def test_an_environment_that_is_up_to_date_is_left_alone(tmp_path):
    stamp = tmp_path / ".installed-test"
    stamp.touch()
    result = subprocess.run(
        ["make", "--dry-run", f"VENV={tmp_path}", "test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "setup.sh" not in result.stdout
    assert f"{tmp_path}/bin/python -m pytest" in result.stdout
