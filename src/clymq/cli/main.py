"""The command's frame: settings, logging, and one way for every error to leave.

Exit codes: 0 done; 1 the answer is no; 2 wrong usage or setting; 3 no server reachable; 4 timed out; 130 interrupted.
An error is one line on stderr, and with `--json` also one document on stdout. Never a traceback.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import click

from clymq.cli.dump import dump
from clymq.config import load
from clymq.errors import ClymqError, ConfigError, ConnectFailed, ConnectionLost, RequestTimeout, UnknownServerError

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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="clymq", prog_name="clymq")
def cli() -> None:
    """ClyMQ, a message queue for Python and Spark.

    Settings come from the environment as CLYMQ_<SETTING>; CLYMQ_LOG sets how much is logged (error, warning, info,
    debug).
    """
    _log_to_stderr(load(environment=os.environ).log)


cli.add_command(dump)


def main() -> NoReturn:
    """Run the command and leave the process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; whatever goes wrong is reported here."""
    code: int | None
    try:
        # Not cli.main(), which has its own ideas of what to print and which code to leave with.
        with cli.make_context("clymq", list(arguments)) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        code = end.exit_code
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not trip over it once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 the last line of defence: all of them are reported
        outcome = _outcome(error)
        _report(outcome, as_json="--json" in arguments)
        return outcome.exit_code
    return code or DONE


class _Outcome(NamedTuple):
    exit_code: int
    code: str
    message: str
    retriable: bool = False
    hint: str | None = None


def _outcome(error: BaseException) -> _Outcome:
    if isinstance(error, ClymqError):
        exit_code = next((code for kind, code in _CODES if isinstance(error, kind)), NO)
        return _Outcome(exit_code, error.code, error.message, error.retriable, error.hint)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _Outcome(INTERRUPTED, "Interrupted", "interrupted")
    if isinstance(error, click.ClickException):
        return _Outcome(USAGE, "Usage", error.format_message())
    logging.getLogger("clymq").debug("unexpected", exc_info=error)
    problem = f"unexpected {type(error).__name__}: {error}"
    return _Outcome(NO, UnknownServerError.code, problem, hint="CLYMQ_LOG=debug shows where")


def _report(outcome: _Outcome, *, as_json: bool) -> None:
    text, hint = " ".join(outcome.message.split()), outcome.hint
    click.echo(f"error: {text}{f' ({hint})' if hint else ''} [{outcome.code}]", err=True)
    if as_json:
        fields = {"code": outcome.code, "message": text, "retriable": outcome.retriable, "hint": hint}
        click.echo(json.dumps({"error": fields}))


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
