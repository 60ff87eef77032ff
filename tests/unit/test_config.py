"""Settings: file < environment < flag, and every wrong value is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from clymq import config
from clymq.config import Config, load
from clymq.errors import ConfigError


def test_the_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('fsync = "never"\nfsync_threads = 2\nretention_ms = 5\n')
    environment = {"CLYMQ_FSYNC_THREADS": "3", "CLYMQ_RETENTION_MS": "6", "PATH": "/bin"}
    loaded = load(file=file, environment=environment, flags={"retention_ms": 7, "fsync": None})
    assert (loaded.fsync, loaded.fsync_threads, loaded.retention_ms) == ("never", 3, 7)


def test_without_any_source_the_defaults_hold() -> None:
    assert load() == Config()


@pytest.mark.parametrize(
    ("values", "setting", "allowed"),
    [
        ({"fsync_threads": 0}, "fsync_threads", "from 1 to 64"),
        ({"fsync_threads": 65}, "fsync_threads", "from 1 to 64"),
        ({"fsync_threads": "many"}, "fsync_threads", "a whole number"),
        ({"fsync_threads": 1.5}, "fsync_threads", "a whole number"),
        ({"fsync": "sometimes"}, "fsync", "one of commit, interval, never"),
        ({"fsink": "commit"}, "fsink", "did you mean fsync?"),
        ({"zzz": 1}, "zzz", "no such setting"),
        ({"message_bytes_max": 2**25}, "message_bytes_max", "at most batch_bytes_max"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_setting_value_and_what_is_allowed(
    values: dict[str, object], setting: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(flags=values)
    error = caught.value
    assert (error.setting, error.value) == (setting, values[setting])
    assert setting in str(error)
    assert repr(values[setting]) in str(error)
    assert allowed in str(error)


# What else must be set so that every value of a setting is allowed.
BESIDE = {
    "message_bytes_max": {"batch_bytes_max": 2**30, "frame_bytes_max": 2**31},
    "batch_bytes_max": {"message_bytes_max": 1, "frame_bytes_max": 2**31},
    "frame_bytes_max": {"message_bytes_max": 1, "batch_bytes_max": 1024},
    "reconnect_ms_min": {"reconnect_ms_max": 3600_000},
    "reconnect_ms_max": {"reconnect_ms_min": 1},
    "retry_ms_min": {"retry_ms_max": 3600_000},
    "retry_ms_max": {"retry_ms_min": 1},
    "fetch_retry_ms_min": {"fetch_retry_ms_max": 600_000},
    "fetch_retry_ms_max": {"fetch_retry_ms_min": 1},
    "election_ms_min": {"election_ms_max": 600_000, "heartbeat_ms": 3},
    "election_ms_max": {"election_ms_min": 10, "heartbeat_ms": 3},
    "heartbeat_ms": {"election_ms_min": 600_000, "election_ms_max": 600_000},
}


def test_election_times_and_heartbeats_must_fit_together() -> None:
    with pytest.raises(ConfigError, match="election_ms_min"):
        load(flags={"election_ms_min": 600})
    with pytest.raises(ConfigError, match="heartbeat_ms"):
        load(flags={"heartbeat_ms": 151})


def test_every_number_is_bounded_on_both_sides_and_both_bounds_are_allowed() -> None:
    for setting in config.settings():
        if "whole number" not in setting.allowed:
            continue
        low, high = (int(word) for word in setting.allowed.split() if word.lstrip("-").isdigit())
        for value in (low, high):
            flags = BESIDE.get(setting.name, {}) | {setting.name: value}
            assert getattr(load(flags=flags), setting.name) == value
        for value in (low - 1, high + 1):
            with pytest.raises(ConfigError, match=setting.name):
                load(flags={setting.name: value})


def test_a_number_in_quotes_is_wrong_in_a_file_but_right_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('fsync_threads = "3"\n')
    with pytest.raises(ConfigError, match="fsync_threads"):
        load(file=file)
    assert load(environment={"CLYMQ_FSYNC_THREADS": "3"}).fsync_threads == 3


def test_the_error_says_where_the_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("fsync_threads = 99\n")
    with pytest.raises(ConfigError, match=r"c\.toml"):
        load(file=file)
    with pytest.raises(ConfigError, match="environment"):
        load(environment={"CLYMQ_FSYNC_THREADS": "99"})
    with pytest.raises(ConfigError, match="flag"):
        load(flags={"fsync_threads": 99})


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(file=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= = =")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(file=tmp_path / "bad.toml")


@pytest.mark.parametrize(("verbose", "level"), [("0", "error"), ("1", "warning"), ("2", "info"), ("3", "debug")])
def test_verbose_means_the_same_four_levels(verbose: str, level: str) -> None:
    assert load(environment={"VERBOSE": verbose}).log == level


def test_the_log_level_comes_from_the_environment_in_any_case_and_beats_verbose() -> None:
    assert load(environment={"VERBOSE": "0", "CLYMQ_LOG": "DEBUG"}).log == "debug"


@pytest.mark.parametrize("environment", [{"CLYMQ_LOG": "loud"}, {"VERBOSE": "9"}, {"CLYMQ_LGO": "info"}])
def test_a_wrong_level_or_variable_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        load(environment=environment)


def test_the_bootstrap_variable_of_clients_is_left_alone() -> None:
    assert load(environment={"CLYMQ_BOOTSTRAP": "h:1"}) == Config()


def test_the_page_of_settings_says_what_the_code_says() -> None:
    page = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    for setting in config.settings():
        row = f"| `{setting.name}` | {setting.default} | {setting.allowed} | {setting.purpose} |"
        assert row in page
    assert page.count("\n| `") == len(list(config.settings()))
