"""The command's frame: settings, logging, and one way for every error to leave.

Whatever a command does, it leaves with one of the exit codes below, and an error is a single line for people (stderr)
and, if `--json` was asked for, a single document for programs (stdout). Nobody is ever shown a traceback.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import click

from clymq.cli.commands import Commands
from clymq.cli.completion import asked_to_complete, complete
from clymq.cli.flags import remember
from clymq.config import command_settings, load
from clymq.errors import (
    ClymqError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DiskFailed,
    RequestTimeout,
    UnknownPartition,
    UnknownServerError,
    UnknownTopic,
)

DONE: Final = 0
NO: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
TIMED_OUT: Final = 4
INTERRUPTED: Final = 130

_CODES: Final[tuple[tuple[type[ClymqError], int], ...]] = (
    (ConfigError, USAGE),
    (RequestTimeout, TIMED_OUT),
    (ConnectFailed, UNREACHABLE),
    (ConnectionLost, UNREACHABLE),
)
# What to do, where the error does not say it by itself.
_HINTS: Final[tuple[tuple[type[ClymqError], str], ...]] = (
    (UnknownTopic, "clymq topic list shows those that there are, clymq topic create makes one"),
    (UnknownPartition, "clymq topic describe shows those that there are"),
    (ConnectFailed, "clymq up starts a cluster; --bootstrap or CLYMQ_BOOTSTRAP says where there is one"),
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="clymq", prog_name="clymq")
@click.option("--config", "file", type=click.Path(), help="Read settings from a TOML file.")
@click.pass_context
def cli(context: click.Context, file: str | None) -> None:
    """ClyMQ, a message queue for Python and Spark.

    Settings come from a TOML file, from the environment as CLYMQ_<SETTING>, and from flags; the later wins. CLYMQ_LOG
    sets how much is logged (error, warning, info, debug).
    """
    context.obj = load(file=file, environment=os.environ)
    remember(context, command_settings(file=file, environment=os.environ))
    _log_to_stderr(context.obj.log)


def main() -> NoReturn:
    """Run the command and leave the process."""
    if asked_to_complete():
        sys.exit(complete(cli))
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; whatever goes wrong is reported here."""
    try:
        code = _invoke(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        _give_up_stdout()
        return DONE
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 the last line of defence: all of them are reported
        outcome = _outcome(error)
        _report(outcome, as_json="--json" in arguments)
        return outcome.exit_code
    return code


def _invoke(arguments: Sequence[str]) -> int:
    """Run the command; not through click's main(), which has its own ideas of what to print and how to leave."""
    try:
        with cli.make_context("clymq", _file_first(arguments)) as context:
            return cli.invoke(context) or DONE
    except click.exceptions.Exit as end:
        return end.exit_code


def _file_first(arguments: Sequence[str]) -> list[str]:
    """Let `--config FILE` stand anywhere: settings are read before any command is."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for at, argument in enumerate(arguments[:end]):
        length = 2 if argument == "--config" else int(argument.startswith("--config="))
        if length and at + length <= end:
            rest = [*arguments[:at], *arguments[at + length :]]
            return [*arguments[at : at + length], *rest]
    return list(arguments)


def _give_up_stdout() -> None:
    """Let what is still in the buffer go nowhere, so that the interpreter does not trip over it when it leaves."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Outcome(NamedTuple):
    exit_code: int
    code: str
    message: str
    retriable: bool = False
    hint: str | None = None


def _outcome(error: BaseException) -> _Outcome:
    if isinstance(error, ClymqError):
        exit_code = next((code for kind, code in _CODES if isinstance(error, kind)), NO)
        hint = error.hint or next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)
        return _Outcome(exit_code, error.code, error.message, error.retriable, hint)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _Outcome(INTERRUPTED, "Interrupted", "interrupted")
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        asked = context.command_path if context is not None else "clymq"
        return _Outcome(USAGE, "Usage", error.format_message(), hint=f"{asked} --help says what there is")
    if isinstance(error, OSError):
        _give_up_stdout()
        return _Outcome(NO, DiskFailed.code, f"the output cannot be written: {error.strerror}")
    logging.getLogger("clymq").debug("unexpected", exc_info=error)
    problem = f"unexpected {type(error).__name__}: {error}"
    return _Outcome(NO, UnknownServerError.code, problem, hint="CLYMQ_LOG=debug shows where")


def _report(outcome: _Outcome, *, as_json: bool) -> None:
    text, hint = " ".join(outcome.message.split()), outcome.hint
    click.echo(f"error: {text}{f' ({hint})' if hint else ''} [{outcome.code}]", err=True)
    if as_json:
        fields = {"code": outcome.code, "message": text, "retriable": outcome.retriable, "hint": hint}
        try:
            click.echo(json.dumps({"error": fields}))
            sys.stdout.flush()
        except (OSError, AttributeError):  # closed, full, or nobody there to read it
            _give_up_stdout()


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
