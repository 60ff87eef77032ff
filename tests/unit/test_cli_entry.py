"""The command before it is loaded."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED_WHILE_LOADING = """
import sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "clymq.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
import runpy
runpy.run_module("clymq.cli", run_name="__main__")
"""


def test_an_interrupt_while_the_command_is_loaded_leaves_as_any_other() -> None:
    command = [sys.executable, "-c", INTERRUPTED_WHILE_LOADING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted [Interrupted]\n")
