"""The command: what it prints, to the letter, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clymq import __version__
from clymq.cli.main import cli, run
from clymq.cli.topic import topic
from clymq.record import BatchBuilder
from clymq.storage.files import RealFiles
from factory import control, fill, following, new_block, stamped

FIELDS = (
    "position", "bytes", "kind", "count", "base_offset", "term", "index", "codec", "cmdindex", "append_time", "ok",
    "problem",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    block = new_block(RealFiles(), f"{tmp_path}/Block_1")
    fill(block, 3)
    batch = BatchBuilder("zstd").add("é".encode(), key=b"\xff", headers={"h": b"1", "n": None}, timestamp=5)
    data = batch.build(producer="p", cmdindex=77)
    block.append([stamped(data, index=4, offset=9)])
    block.append([control(block)])
    block.close()
    return tmp_path / "Block_1"


def dumped(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict]]:
    code = run(["dump", "--json", *map(str, arguments)])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dump_prints_every_batch_and_a_summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = dumped(capsys, folder)
    assert code == 0
    assert all(tuple(line) == FIELDS for line in lines[:-1])
    assert [line["kind"] for line in lines[:-1]] == ["data"] * 4 + ["control"]
    assert [line["base_offset"] for line in lines[:-1]] == [0, 3, 6, 9, 10]
    assert [line["index"] for line in lines[:-1]] == [1, 2, 3, 4, 5]
    assert (lines[3]["codec"], lines[3]["cmdindex"], lines[3]["ok"], lines[3]["problem"]) == ("zstd", 77, True, None)
    size = (folder / "batches").stat().st_size
    assert sum(line["bytes"] for line in lines[:-1]) == size
    assert lines[-1] == {"summary": {"batches": 5, "messages": 10, "start": 0, "end": 10, "damaged_at": None}}


def test_dump_takes_a_file_as_well_as_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dumped(capsys, folder / "batches") == dumped(capsys, folder)


def test_dump_shows_messages_as_text_or_base64(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = dumped(capsys, folder, "--messages", 100)
    assert lines[3]["messages"] == [
        {"offset": 9, "timestamp": 5, "key": {"base64": "/w=="}, "value": "é", "headers": [["h", "1"], ["n", None]]}
    ]
    _, lines = dumped(capsys, folder, "--messages", 4)
    assert [len(line.get("messages", [])) for line in lines[:-1]] == [3, 1, 0, 0, 0]


def test_dump_says_where_a_block_is_damaged_and_goes_on_behind_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, good = dumped(capsys, folder)
    path = folder / "batches"
    data = bytearray(path.read_bytes())
    data[good[1]["position"] + 200] ^= 1
    path.write_bytes(data)
    code, lines = dumped(capsys, folder)
    assert code == 1
    assert [line["ok"] for line in lines[:-1]] == [True, False, True, True, True]
    assert lines[1]["problem"].startswith("body_crc")
    assert (lines[1]["position"], lines[1]["bytes"]) == (good[1]["position"], good[1]["bytes"])
    assert lines[-1]["summary"]["damaged_at"] == good[1]["position"]
    assert path.read_bytes() == bytes(data), "dump only reads"


def test_dump_finds_batches_that_are_whole_but_do_not_follow_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = new_block(RealFiles(), f"{folder.parent}/Block_2")
    first = following(block, [b"a"])
    stray = stamped(bytes(first.buffer), index=9, offset=55)
    (folder / "batches").write_bytes(bytes(first.buffer) + bytes(stray.buffer))
    code, lines = dumped(capsys, folder)
    assert (code, lines[1]["ok"], lines[-1]["summary"]["damaged_at"]) == (1, False, first.length)
    assert "does not follow" in lines[1]["problem"]


def test_dump_of_a_block_knows_what_the_checkpoint_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "Block_1"
    block = new_block(RealFiles(), str(folder))
    fill(block, 10)
    block.write_checkpoint(10, b"")
    end = block.end_at(5).position
    block.close()
    batches = folder / "batches"
    whole = batches.read_bytes()
    assert dumped(capsys, folder)[0] == 0
    batches.write_bytes(whole[:end])
    code, lines = dumped(capsys, folder)
    assert (code, lines[-1]["summary"]["damaged_at"]) == (1, end)
    assert lines[-2]["problem"] == "index: ends at 5; entries up to 10 were committed"
    batches.write_bytes(whole[end:])
    code, lines = dumped(capsys, folder)
    assert (code, lines[-1]["summary"]["damaged_at"]) == (1, 0)
    assert "does not follow" in lines[0]["problem"]
    batches.write_bytes(whole)
    (folder / "checkpoint").unlink()
    code, lines = dumped(capsys, folder)
    assert (code, lines[-2]["problem"]) == (1, "checkpoint: the checkpoint is missing")


def test_settings_may_come_from_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder.parent / "c.toml"
    config.write_text('log = "loud"')
    assert run(["--config", str(config), "dump", str(folder)]) == 2
    assert "c.toml" in capsys.readouterr().err
    config.write_text('log = "debug"')
    assert run(["--config", str(config), "dump", str(folder)]) == 0


def test_dump_of_an_empty_or_strange_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_bytes(b"")
    code, lines = dumped(capsys, tmp_path / "empty")
    summary = {"batches": 0, "messages": 0, "start": None, "end": None, "damaged_at": None}
    assert (code, lines) == (0, [{"summary": summary}])
    (tmp_path / "text").write_bytes(b"hello\n" * 100)
    code, lines = dumped(capsys, tmp_path / "text")
    assert (code, lines[0]["ok"], lines[0]["bytes"]) == (1, False, 600)


def test_dump_as_text_is_a_table_with_the_damage_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", str(folder), "--messages", "1"]) == 0
    out = capsys.readouterr().out
    assert "base_offset" in out
    assert "5 batches, 10 messages, offsets [0, 10)" in out
    assert '"offset": 0' in out
    (folder / "batches").write_bytes(b"x" * 50)
    assert run(["dump", str(folder)]) == 1
    assert "damaged at 0" in capsys.readouterr().out


def test_a_missing_path_is_one_line_on_stderr_and_one_document_with_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dump", "--json", str(tmp_path / "none")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.endswith("[InvalidRequest]\n")
    assert captured.err.count("\n") == 1
    error = json.loads(captured.out)["error"]
    assert set(error) == {"code", "message", "retriable", "hint"}
    assert error["code"] == "InvalidRequest"
    assert "neither a block folder nor a batch file" in error["message"]
    assert run(["dump", str(tmp_path)]) == 1, "a folder that is not a block"


@pytest.mark.parametrize(
    "arguments", [["dump"], ["dump", "x", "--messages", "-1"], ["dump", "--colour", "x"], ["jump"], ["--nothing"]]
)
def test_wrong_usage_is_exit_code_2_and_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.endswith("--help says what there is) [Usage]\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("partitions", ["-1", "+2", "\u0663", " 3", "", ",", "x,,y", "x,", ",x", "1" * 5000])
def test_partitions_that_are_neither_a_plain_number_nor_names_are_wrong_usage(
    partitions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", "create", "t", "--partitions", partitions]) == 2
    err = capsys.readouterr().err
    assert f"'--partitions': {partitions!r} must be" in err
    assert err.endswith("[Usage]\n")


@pytest.mark.parametrize(
    ("partitions", "meant"),
    [("0", 0), ("12", 12), ("1.5", ["1.5"]), ("2024_01", ["2024_01"]), ("a", ["a"]), ("1,-1", ["1", "-1"])],
)
def test_partitions_are_a_plain_number_or_names(partitions: str, meant: int | list[str]) -> None:
    with topic.commands["create"].make_context("create", ["t", "--partitions", partitions]) as context:
        assert context.params["partitions"] == meant


@pytest.mark.parametrize(
    ("zkserver", "told"),
    [
        ("nope", "'nope'"),
        ("", "''"),
        ("127.0.0.1:7878,", "''"),
        ("127.0.0.1:7878,nope", "'nope'"),
        ("127.0.0.1:1,127.0.0.1:2", "the embedded store is at one address"),
    ],
)
def test_a_broker_refuses_addresses_that_are_none_at_once(
    zkserver: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert run(["broker", "--listen", "127.0.0.1:0", "--data", str(data), "--zkserver", zkserver]) == 2
    err = capsys.readouterr().err
    assert "--zkserver" in err
    assert told in err
    assert err.endswith("[Usage]\n")
    assert not data.exists()


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_every_command_and_option_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    for name, command in cli.load_all().items():
        assert run([name, "--help"]) == 0
        assert command.help
        assert all(getattr(option, "help", "") for option in command.params if option.param_type_name == "option")
    assert "CLYMQ_LOG" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("name", ["CLYMQ_LOG", "CLYMQ_FSYNC_THREADS", "CLYMQ_TYPO"])
def test_a_wrong_setting_in_the_environment_is_exit_code_2(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "loud")
    assert run(["dump", str(folder)]) == 2
    assert name.removeprefix("CLYMQ_").lower() in capsys.readouterr().err


def test_an_interrupt_is_exit_code_130_and_a_surprise_is_no_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, code, word in ((KeyboardInterrupt(), 130, "[Interrupted]"), (ZeroDivisionError("oh"), 1, "unexpected")):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("clymq.cli.dump.scan", fail)
        assert run(["dump", str(folder)]) == code
        err = capsys.readouterr().err
        assert word in err
        assert "Traceback" not in err


def test_output_that_cannot_be_written_is_an_error_without_a_traceback(folder: Path) -> None:
    script = Path(sys.executable).with_name("clymq")
    for command in (f"{script} dump {folder} --json >/dev/full", f"{script} dump /nowhere --json >/dev/full"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    done = subprocess.run(["bash", "-c", f"{script} dump {folder} >&-"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    done = subprocess.run(["bash", "-c", f"{script} dump /nowhere --json | true"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_what_would_command_the_terminal_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = BatchBuilder().add("\x9b31m\x7f é".encode()).build(producer="p", cmdindex=1)
    (tmp_path / "f").write_bytes(bytes(stamped(data, index=1, offset=0).buffer))
    for arguments in (["--json"], []):
        assert run(["dump", str(tmp_path / "f"), "--messages", "1", *arguments]) == 0
        assert "\\u009b31m\\u007f é" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    block = new_block(RealFiles(), f"{folder.parent}/Block_3")
    fill(block, 3000)
    block.close()
    script = Path(sys.executable).with_name("clymq")
    with subprocess.Popen(
        [script, "dump", f"{folder.parent}/Block_3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 0
