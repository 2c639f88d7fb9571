"""Defines a command's parameters: positional arguments and flags.

A flag is an `Option`, like the options of a job. Its kind determines how many values it takes: one,
none, or any number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from redline.errors import ConfigError
from redline.job.settings import FLAGS, Kind, Option, flag_of


class Word(click.Argument):
    """Defines a positional argument. is_many: it takes any number of values, including none."""

    def __init__(self, name: str, metavar: str, about: str, *, is_many: bool = False) -> None:
        nargs = -1 if is_many else 1
        super().__init__([name], metavar=metavar, required=not is_many, nargs=nargs)
        self.about = about

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Returns the argument's string, or a list if `is_many`; None if it is missing."""
        found = super().process_value(ctx, value)
        return (list(found) or None) if isinstance(found, tuple) else found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class Flag(click.Option):
    """Defines a flag, its section in the help, and the completions that it offers to a shell."""

    def __init__(self, option: Option, section: str) -> None:
        # The key is listed because click would otherwise derive the parameter's name from the flag.
        names = [option.key, option.short, flag_of(option.key)]
        is_switch = option.kind is Kind.FLAG
        super().__init__(
            list(filter(None, names)),
            metavar=option.metavar,
            help=option.help,
            is_flag=is_switch,
            # Even if the flag takes one value: of several, click would silently use the last.
            multiple=not is_switch,
            default=False if is_switch else None,
        )
        self.section = section
        self._is_list = option.kind is Kind.LIST
        self._words = option.complete

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Returns the flag's string, or a list of strings if the flag is repeatable.

        If the flag is not given: None, or False for a switch. Raises ConfigError if a flag that
        takes one value is given twice.
        """
        found = super().process_value(ctx, value)
        if not isinstance(found, tuple):
            return found
        if self._is_list:
            return list(found) or None
        if len(found) > 1:
            raise ConfigError(
                f"{max(self.opts, key=len)} is given {len(found)} times",
                hint="it takes one value: leave the others out",
            )
        return found[0] if found else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if not self._words:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


def job_flags(keys: Sequence[str], helps: Mapping[str, str]) -> list[Option]:
    """Returns a job's options with these names. helps: as for `with_helps`."""
    return with_helps([FLAGS[key] for key in keys], helps)


def with_helps(options: Iterable[Option], helps: Mapping[str, str]) -> list[Option]:
    """Returns the options. helps: help texts to use instead of their own, by key."""
    return [
        msgspec.structs.replace(option, help=helps.get(option.key, option.help))
        for option in options
    ]


def params_of(stated: Iterable[Word | Option]) -> list[click.Parameter]:
    """Converts arguments and options to click's parameters."""
    made: list[click.Parameter] = []
    section = ""
    for each in stated:
        if isinstance(each, Option):
            section = each.section or section
            made.append(Flag(each, section))
        else:
            made.append(each)
    return made
