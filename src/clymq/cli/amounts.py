"""Numbers on the command line that are seconds, or so many a second."""

from __future__ import annotations

import math

import click


class Amount(click.FloatRange):
    """A finite number within its bounds: to compare it with a bound tells nothing about `nan`."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or say what is allowed."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found
