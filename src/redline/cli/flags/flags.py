"""Defines a command's parameters: positional arguments and flags.

A flag is an `Option`, like the options of a job. Its kind determines how many texts it takes: one,
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
    """A positional argument. is_many: whether it takes any number of values, even none."""

    def __init__(self, name: str, metavar: str, about: str, *, is_many: bool = False) -> None:
        nargs = -1 if is_many else 1
        super().__init__([name], metavar=metavar, required=not is_many, nargs=nargs)
        self.about = about

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Returns the text, or a list if it takes many; None if it is not given."""
        found = super().process_value(ctx, value)
        return (list(found) or None) if isinstance(found, tuple) else found


class Flag(click.Option):
    """A flag in a section of the help, with the completions that it offers to a shell."""

    def __init__(self, option: Option, section: str) -> None:
        # The flag's own name first: otherwise click derives one from the flag.
        names = [option.key, option.short, flag_of(option.key)]
        is_switch = option.kind is Kind.FLAG
        super().__init__(
            list(filter(None, names)),
            metavar=option.metavar,
            help=option.help,
            is_flag=is_switch,
            # Also for a flag that takes one text: click would silently use the last one of several.
            multiple=not is_switch,
            default=False if is_switch else None,
        )
        self.section = section
        self._is_list = option.kind is Kind.LIST
        self._words = option.complete

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Returns the text, or a list if it is repeatable; None if it is not given.

        False for a switch that is not given. Raises ConfigError if a flag that takes one text is
        given twice.
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
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


def job_flags(keys: Sequence[str], helps: Mapping[str, str]) -> list[Option]:
    """Returns the options of a job with these names. helps: other texts for the help, by name."""
    return [
        msgspec.structs.replace(FLAGS[key], help=helps.get(key, FLAGS[key].help)) for key in keys
    ]


def params_of(stated: Iterable[Word | Option]) -> list[click.Parameter]:
    """Returns the parameters for click."""
    made: list[click.Parameter] = []
    section = ""
    for each in stated:
        if isinstance(each, Option):
            section = each.section or section
            made.append(Flag(each, section))
        else:
            made.append(each)
    return made
