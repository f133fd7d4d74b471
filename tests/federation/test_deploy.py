"""What is shipped for deployment: units that systemd accepts, a container file without a privileged user."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from consilia.cli.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")


def value(text, key):
    (found,) = re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)
    return found


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(unit, tmp_path):
    """The program is not installed where the unit says, so it is told of one that is."""
    text = unit.read_text().replace("/opt/consilia/bin/consilia", sys.executable)
    (tmp_path / unit.name).write_text(text)
    words = [ANALYZE, "verify", "--man=no", str(tmp_path / unit.name)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_the_unit_gives_a_command_that_exists_as_a_user_without_rights(unit):
    text = unit.read_text()
    _, group, verb, *options = value(text, "ExecStart").split()
    command = typer.main.get_command(app)
    for name in (group, verb):
        command = command.commands[name]
    named = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in options if word.startswith("--")} <= named
    assert "--foreground" in options
    assert value(text, "User") == "consilia"
    assert value(text, "NoNewPrivileges") == "yes"
    assert value(text, "CapabilityBoundingSet") == ""
    at = options[options.index("--at") + 1]
    assert Path(at).is_relative_to(value(text, "ReadWritePaths"))


def test_the_container_copies_what_there_is_and_ends_as_a_user_without_rights():
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    copied = [word for kind, rest in steps if kind == "COPY" for word in rest.split()[:-1]]
    assert copied
    assert all((DEPLOY.parent / name).exists() for name in copied)
    kinds = [kind for kind, _ in steps]
    assert [rest for kind, rest in steps if kind == "USER"] == ["consilia"]
    assert "RUN" not in kinds[kinds.index("USER") :]
    assert "uid 10001" in text
    assert "keep-id:uid=10001" in text
