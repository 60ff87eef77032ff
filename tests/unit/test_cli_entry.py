"""The command before it is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clymq import __version__

INTERRUPTED_WHILE_LOADING = """
import sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "clymq.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
import runpy
runpy.run_module(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("module", ["clymq", "clymq.cli"])
def test_the_package_and_the_cli_are_run_as_the_command(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"clymq, version {__version__}\n", "")


@pytest.mark.parametrize("module", ["clymq", "clymq.cli"])
def test_an_interrupt_while_the_command_is_loaded_leaves_as_any_other(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_WHILE_LOADING, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted [Interrupted]\n")
