"""The pages show what the command prints, docs/schedules.md for every schedule."""

import pathlib
import re
import shlex

import pytest

from jaxpipe import cli
from jaxpipe.schedule import schedule_names

FOLDER = pathlib.Path(__file__).parents[2] / "docs"
PAGE = FOLDER / "schedules.md"
BLOCKS = [
    block
    for page in (PAGE, FOLDER / "slices.md", FOLDER / "sequential.md")
    for block in re.findall(
        r"^```text\n\$ jaxpipe (.*)\n((?:.*\n)*?)```$", page.read_text("utf-8"), re.M
    )
]


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_every_picture_is_what_the_command_prints(capsys, command, shown):
    assert cli.main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown


def test_every_schedule_is_shown():
    text = PAGE.read_text("utf-8")
    headings = " ".join(re.findall(r"^## (.*)$", text, re.M))
    assert set(schedule_names()) <= set(re.findall(r"\w+", headings))
