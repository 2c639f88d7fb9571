"""A command's flags, as its signature states them.

A parameter is `Annotated[type, Option(...)]`, or of an Argument; its type says what may be given:

  str | None        once, and None where it is not
  bool              a flag without a value
  list[str] | None  as often as wanted; of an argument, any number of words
  str               an argument that must be there
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import click
import msgspec
from click.shell_completion import CompletionItem

Complete = Callable[[str], list[str]]


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """What stands on the command line without a name."""

    metavar: str
    help: str


class Option:
    """names: as `-o` and `--output`; none for that of the parameter. section: of the help, where it
    is not the last. complete: what a shell completes a beginning to.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        section: str | None = None,
        complete: Complete | None = None,
    ) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar
        self.section = section
        self.complete = complete


class Flag(click.Option):
    """An option with its section."""

    section: str | None = None


class Word(click.Argument):
    """An argument with what is said of it."""

    about: str = ""


def params_of(function: Callable[..., None]) -> list[click.Parameter]:
    """The parameters that the function's signature states; one that is a Context is no flag."""
    made: list[click.Parameter] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if get_origin(parameter.annotation) is Annotated:
            kind, stated = get_args(parameter.annotation)[:2]
            made.append(
                _word(name, kind, stated)
                if isinstance(stated, Argument)
                else _flag(name, kind, stated)
            )
    return made


def values_of(ctx: click.Context) -> dict[str, Any]:
    """What was given, by parameter: a list where several could be, None where nothing was."""
    return {
        name: (list(value) or None) if isinstance(value, tuple) else value
        for name, value in ctx.params.items()
    }


def _word(name: str, kind: Any, stated: Argument) -> Word:
    is_many = kind is not str
    word = Word([name], metavar=stated.metavar, required=not is_many, nargs=-1 if is_many else 1)
    word.about = stated.help
    return word


def _flag(name: str, kind: Any, stated: Option) -> Flag:
    names = stated.names or ("--" + name.replace("_", "-"),)
    # The parameter's own name first: click would else take one from the flag.
    flag = Flag(
        [name, *names],
        metavar=stated.metavar,
        help=stated.help,
        is_flag=kind is bool,
        multiple=kind not in (bool, str | None),
        default=False if kind is bool else None,
        shell_complete=None if stated.complete is None else _completion(stated.complete),
    )
    flag.section = stated.section
    return flag


def _completion(
    complete: Complete,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(value) for value in complete(incomplete)]

    return items
