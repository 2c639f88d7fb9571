"""Defines commands, which read their flags and show their help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click import Context

from redline.cli.flags.flags import Flag, Word, params_of
from redline.errors import ConfigError
from redline.job.settings import Option, read

_OTHER, _FLAGS = "Other", "Flags"
WIDTH = 100


def _check_folder() -> None:
    """Raises ConfigError if the current folder was removed, so that no relative path works."""
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the current folder cannot be used: {error.strerror}",
            hint="change to a folder that exists: cd ..",
        ) from error


class _Described:
    """Formats the help of a command, which is plain text."""

    help: str | None

    def format_help_text(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        """Writes the paragraphs wrapped, except indented ones, which are examples."""
        for paragraph in inspect.cleandoc(self.help or "").split("\n\n"):
            formatter.write_paragraph()
            if paragraph.startswith("  "):
                formatter.write("".join(f"{line}\n" for line in paragraph.splitlines()))
            else:
                formatter.write_text(" ".join(paragraph.split()))


class Command(_Described, click.Command):
    """Runs a function as a command. Its help is plain text, with the flags in sections.

    function: called with the context and the positional arguments; returns the exit status, None
    for 0. Its docstring is the help. stated: the positional arguments and flags.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., int | None],
        stated: Iterable[Word | Option],
        summary: str,
    ) -> None:
        super().__init__(
            name,
            params=params_of(stated),
            callback=function,
            help=inspect.getdoc(function),
            short_help=summary,
        )

    def invoke(self, ctx: Context) -> Any:
        assert self.callback is not None
        _check_folder()
        return self.callback(ctx, *(ctx.params[word.name] for word in _words(self) if word.name))

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Returns what follows the command in its usage line, such as `INPUT` and `[FLAGS]`."""
        return [*(word.metavar or "" for word in _words(self)), "[FLAGS]"]

    def format_options(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        """Writes the positional arguments, then the flags by section, in their given order."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = None if isinstance(param, Word) else param.get_help_record(ctx)
            if record is not None:
                section = param.section if isinstance(param, Flag) else None
                sections.setdefault(section or _OTHER, []).append(record)
        # Every command has --help, so this section always exists; it comes last.
        sections[_OTHER if len(sections) > 1 else _FLAGS] = sections.pop(_OTHER)
        if words := [(word.metavar or "", word.about) for word in _words(self)]:
            formatter.write_paragraph()
            formatter.write_dl(words)
        for name, rows in sections.items():
            with formatter.section(name):
                formatter.write_dl(rows)


class Group(_Described, click.Group):
    """Runs one of several commands, and lists them in its help. The program itself is a group.

    A command is imported only when it is used: importing all of them would take a third of the
    start-up time. known: the module and a summary of each command. The module is in `cli.commands`
    unless its name begins with another folder of `cli`, as in `results.verify`. It defines a
    function with the module's name, and PARAMS for this function; or, for a group of commands,
    COMMANDS and HELP.
    """

    def __init__(
        self,
        name: str,
        known: Mapping[str, tuple[str, str]],
        params: list[click.Parameter],
        text: str,
    ) -> None:
        super().__init__(
            name,
            params=params,
            help=inspect.cleandoc(text),
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
        )
        self._known = known

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        # Without arguments, show the help; that is not an error.
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: Context) -> list[str]:
        return list(self._known)

    def get_command(self, ctx: Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._known:
            return None
        if cmd_name not in self.commands:
            path, summary = self._known[cmd_name]
            folder, _, function = path.rpartition(".")
            module = import_module(f"redline.cli.{folder or 'commands'}.{function}")
            if hasattr(module, "COMMANDS"):
                self.commands[cmd_name] = Group(cmd_name, module.COMMANDS, [], module.HELP)
            else:
                found = getattr(module, function)
                self.commands[cmd_name] = Command(cmd_name, found, module.PARAMS, summary)
        return self.commands[cmd_name]

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        return ["COMMAND [FLAGS]"]

    def format_options(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._known.items()])
        records = (param.get_help_record(ctx) for param in self.get_params(ctx))
        with formatter.section(_FLAGS):
            formatter.write_dl([record for record in records if record is not None])


def _words(command: click.Command) -> list[Word]:
    return [param for param in command.params if isinstance(param, Word)]


def stated(ctx: Context) -> dict[str, Any]:
    """Returns the positional arguments and flags on the command line, by name."""
    return {name: value for name, value in ctx.params.items() if value not in (None, False)}


def read_flags(ctx: Context, params: Iterable[Word | Option]) -> dict[str, Any]:
    """Returns the values that the given flags set, by field. Raises ConfigError for a bad value."""
    return read((each for each in params if isinstance(each, Option)), stated(ctx))
