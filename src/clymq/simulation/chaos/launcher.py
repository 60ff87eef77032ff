"""Starts a server of the product with hooks in it that no product has: a disk that can be full or lose its power, a
clock that jumps, connections that break, and rules that are broken on purpose.

    python -m clymq.simulation.chaos.launcher --hooks FOLDER [--mutation NAME] -- broker --name Broker0 ...

Everything here replaces methods of classes before the server starts; the product has no switch for any of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from clymq.cli.main import run
from clymq.simulation.chaos.hooks import Hooks
from clymq.simulation.chaos.mutations import applied


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the server in this process, until it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hooks", type=Path, required=True)
    parser.add_argument("--mutation")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args(argv)
    Hooks(arguments.hooks).install()
    with applied(arguments.mutation):
        sys.exit(run(arguments.command))


if __name__ == "__main__":
    main()
