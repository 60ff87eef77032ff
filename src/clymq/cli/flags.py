"""Flags that are settings: they may stand in the file and in the environment as every other setting; the flag wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

_GIVEN: Final = "clymq.cli.flags"
F = TypeVar("F", bound=Callable[..., Any])


def remember(context: click.Context, given: Mapping[str, object]) -> None:
    """Note what file and environment say about flags, for the command that has them."""
    context.meta[_GIVEN] = given


class SettingOption(click.Option):
    """A flag that is looked for in the environment, and then in the file, where it is not given."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value and where it comes from."""
        value, source = super().consume_value(ctx, opts)
        given: Mapping[str, object] = ctx.meta.get(_GIVEN, {})
        name = self.opts[0].removeprefix("--")
        if source is ParameterSource.DEFAULT and name in given:
            return given[name], ParameterSource.DEFAULT_MAP
        return value, source


def setting_option(flag: str, *more: str, **attributes: Any) -> Callable[[F], F]:
    """Give a command a flag that is a setting; see `clymq.config.COMMAND_SETTINGS`."""
    return click.option(flag, *more, cls=SettingOption, **attributes)
