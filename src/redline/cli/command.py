"""How a command reads its flags and shows its help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from typer import Context
from typer.core import TyperCommand, TyperGroup

from redline.errors import ConfigError

_OTHER, _FLAGS = "Other", "Flags"
WIDTH = 100


class Command(TyperCommand):
    """A command whose help is plain text in sections, and whose flags are given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is left of the arguments. Raises ConfigError for a flag that is given twice."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for param in given:
                # Without this the last one would count, and the first be lost in silence.
                is_repeatable = param.multiple or getattr(param, "is_flag", False)
                if given.count(param) > 1 and not is_repeatable:
                    raise ConfigError(
                        f"{longest(param.opts)} is given {given.count(param)} times",
                        hint="it takes one value: leave the others out",
                    )
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`INPUT [FLAGS]`."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return [*(str(p.metavar) for p in arguments), "[FLAGS]"]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        write_prose(self.help or "", formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """INPUT, then the flags by section, in the order in which the sections first occur."""
        arguments: list[tuple[str, str]] = []
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                arguments.append((str(param.metavar), getattr(param, "help", None) or ""))
            elif (record := param.get_help_record(ctx)) is not None:
                section = getattr(param, "rich_help_panel", None) or _OTHER
                sections.setdefault(section, []).append(record)
        # --help is always there, so this section is never missing; it comes last.
        sections[_OTHER if len(sections) > 1 else _FLAGS] = sections.pop(_OTHER)
        if arguments:
            formatter.write_paragraph()
            formatter.write_dl(arguments)
        for name, rows in sections.items():
            with formatter.section(name):
                formatter.write_dl(rows)


class Group(TyperGroup):
    """The program itself: its commands first, then its flags."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["COMMAND [FLAGS]"]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        write_prose(self.help or "", formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        records = (param.get_help_record(ctx) for param in self.get_params(ctx))
        with formatter.section(_FLAGS):
            formatter.write_dl([record for record in records if record is not None])


def write_prose(text: str, formatter: Any) -> None:
    """Paragraphs, wrapped; an indented one is an example and stays as it is."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        formatter.write_paragraph()
        if paragraph.startswith("  "):
            formatter.write("".join(f"{line}\n" for line in paragraph.splitlines()))
        else:
            formatter.write_text(" ".join(paragraph.split()))


def with_flags_of(
    other: Callable[..., None], *, without: Iterable[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of another one, but for those named; its own come first.

    The command takes them as keywords it does not look at: `stated` reads them from the context.
    """
    left_out = set(without)

    def give(command: Callable[..., None]) -> Callable[..., None]:
        theirs = inspect.signature(other, eval_str=True).parameters
        mine = inspect.signature(command, eval_str=True).parameters
        own = [each for each in mine.values() if each.kind is not each.VAR_KEYWORD]
        shared = [
            each for name, each in theirs.items() if name not in left_out and name not in mine
        ]

        @wraps(command)
        def taking(**given: Any) -> None:
            command(**given)

        taking.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        taking.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
        return taking

    return give


def longest(names: Iterable[str]) -> str:
    """`--output` of `-o` and `--output`."""
    return max(names, key=len)


def stated(ctx: Context) -> dict[str, Any]:
    """The flags that stand on the command line, by name."""
    return {
        name: value
        for name, value in ctx.params.items()
        if (source := ctx.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }


def one_of(*names: str) -> Callable[[str], list[str]]:
    """What a shell completes to where a flag takes one of `names`."""

    def matching(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return matching
