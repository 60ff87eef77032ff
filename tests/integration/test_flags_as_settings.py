"""Flags that are settings: in the file, in the environment and on the command line, and the later wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from clymq.cli.main import run
from clymq.config import COMMAND_SETTINGS

FILE, ENVIRONMENT, FLAG = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"  # nobody listens there


def asked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return which address a command tried to reach."""
    assert run(arguments) == 3
    return capsys.readouterr().err.removeprefix("error: cannot connect to ").split(": ")[0]


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'bootstrap = "{FILE}"\ntimeout = 3\nlog = "error"\n')
    assert asked(["--config", str(file), "topic", "list"], capsys) == FILE
    monkeypatch.setenv("CLYMQ_BOOTSTRAP", ENVIRONMENT)
    assert asked(["--config", str(file), "topic", "list"], capsys) == ENVIRONMENT
    assert asked(["--config", str(file), "topic", "list", "--bootstrap", FLAG], capsys) == FLAG


def test_the_file_may_be_named_anywhere_in_front_of_what_is_no_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'bootstrap = "{FILE}"\n')
    assert asked(["topic", "list", "--config", str(file)], capsys) == FILE
    assert asked(["topic", f"--config={file}", "list"], capsys) == FILE
    assert run(["topic", "list", "--config"]) == 2
    assert run(["status", "--", "--config", str(file)]) == 2


@pytest.mark.parametrize(
    ("command", "setting", "value", "said"),
    [
        ("zkserver", "listen", '"nope"', "nope"),
        ("zkserver", "store", '"paper"', "paper"),
        ("broker", "listen", '"nope"', "nope"),
        ("broker", "zkserver", '"nope"', "nope"),
        ("broker", "power", "0", "0"),
        ("broker", "name", '"a/b"', "a/b"),
        ("status", "timeout", "-1", "-1"),
    ],
)
def test_what_is_wrong_in_the_file_is_wrong_usage_as_it_would_be_in_a_flag(
    command: str, setting: str, value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"{setting} = {value}\n")
    assert run(["--config", str(file), command]) == 2
    assert said in capsys.readouterr().err


def test_every_such_setting_is_a_flag_of_a_command() -> None:
    from clymq.cli.flags import SettingOption  # noqa: PLC0415
    from clymq.cli.main import cli  # noqa: PLC0415

    flags = {
        option.opts[0].removeprefix("--")
        for command in cli.load_all().values()
        for option in command.params
        if isinstance(option, SettingOption)
    }
    assert flags == set(COMMAND_SETTINGS)


@pytest.mark.parametrize("flag", ["--host", "--rack"])
def test_a_label_that_is_no_unicode_is_wrong_usage(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", flag, "\udc91"]) == 2
    assert flag in capsys.readouterr().err
