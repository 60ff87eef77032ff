"""Where the command begins, before anything is loaded: Ctrl-C during that half second leaves as it does later."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Load the command, run it and leave the process."""
    try:
        from clymq.cli.main import main as run  # noqa: PLC0415 see the module
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted [Interrupted]\n")
        sys.exit(130)
    run()
