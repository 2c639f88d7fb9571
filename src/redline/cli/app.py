"""The command line: commands, and the one place where errors become text and exit status."""

from __future__ import annotations

import gc
import sys
import traceback
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Exit, Option, Typer

from redline._version import __version__
from redline.cli.command import WIDTH, Command, Group
from redline.cli.output import forget_stdout, hold_standard_streams, say, tell
from redline.cli.present import error_text
from redline.errors import ConfigError, JournalError, RedlineError, nearest

USAGE, DEFECT, INTERRUPTED = 2, 3, 130

# Name: the module in this package and the function in it, and what it does.
_COMMANDS = {
    "run": ("run", "Send every row of a file to an endpoint."),
    "eval": ("evaluate", "Ask a test set, and say how many answers are right."),
    "verify": ("verify", "Prove that a results file is complete."),
    "repair": ("repair", "Take damaged lines out of a results file."),
    "sim": ("sim", "Simulate a provider to try things on."),
}
# Those that take the flags of `run`, and what redline.toml sets for it.
_ON_RUN = ("eval",)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        say(f"redline {__version__}\n")
        raise Exit()


def _root(
    version: Annotated[
        bool,
        Option("-V", "--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Run very many LLM calls as fast as their limits allow, and lose none of them.

    A file of rows goes in, a file of answers comes out. Try it without a provider and without a
    key, against the simulated one:

        echo '{"text": "It will not start."}' > tickets.jsonl
        redline run tickets.jsonl --prompt 'Classify: {{ text }}' --endpoint sim

    redline COMMAND --help explains each command.
    """


def _program(asked: str) -> Any:
    """The program with the command that is asked for; with all of them where it is none of them.

    Each is imported with all that it needs, and each of its flags is compiled: the others would be
    a third of the time to a start.
    """
    app = Typer(
        name="redline",
        cls=Group,
        # Plain text: it stays whole in narrow terminals, logs and pipes, and can be copied.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    )
    app.callback()(_root)
    names = dict.fromkeys(("run", asked)) if asked in _ON_RUN else (asked,)
    for name in names if asked in _COMMANDS else _COMMANDS:
        function, summary = _COMMANDS[name]
        command = getattr(import_module(f"redline.cli.{function}"), function)
        app.command(name, cls=Command, short_help=summary)(command)
    return typer.main.get_command(app)


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with its status."""
    hold_standard_streams()
    # What is imported lives to the end, and a run's garbage is almost all counted away: with
    # Python's default of 700 objects, the collector takes a quarter of a busy client's time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.exit(_status(sys.argv[1:] if argv is None else argv))


def _status(arguments: list[str]) -> int:
    """The exit status of one command; whatever went wrong is told on stderr."""
    command = _program(_name_in(arguments))
    try:
        status = command.main(
            # The bare name is a question, and not an error.
            args=arguments or ["--help"],
            prog_name="redline",
            standalone_mode=False,
            obj={"argv": arguments},
        )
        say()
        return status if isinstance(status, int) else 0
    except RedlineError as error:
        if isinstance(error, JournalError):
            forget_stdout()
        tell(error_text(error))
        return USAGE
    except BrokenPipeError:
        # Whoever read our output has what they wanted.
        forget_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        # The process's boundary. Usage errors are known by the one method that they share.
        if hasattr(error, "format_message"):
            tell(error_text(_usage(error, error.format_message(), arguments)))
            return USAGE
        tell(traceback.format_exc())
        tell(
            "\nerror: this is a defect in redline, not in your input\n\n"
            "hint: report it with the lines above; results that are on disk are safe\n"
        )
        return DEFECT


def _usage(error: Any, message: str, arguments: list[str]) -> ConfigError:
    """A usage error of the parser in redline's words, with the nearest name for an unknown one.

    The parser's classes are private to typer, so they are known by name.
    """
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"redline {arguments[0]}"
    help_hint = f"{path} --help lists what there is"
    match type(error).__name__:
        case "NoSuchOption":
            known = [name for param in context.command.params for name in param.opts]
            hint = nearest(error.option_name, known) or help_hint
            return ConfigError(f"unknown flag: {error.option_name}", hint=hint)
        case "MissingParameter":
            name = error.param.metavar
            return ConfigError(
                f"{name} is missing", where=path, hint=f"{path} {name} [FLAGS]; {help_hint}"
            )
        case "BadOptionUsage" if "does not take" in message:
            return ConfigError(f"{error.option_name} takes no value", hint=help_hint)
        case "BadOptionUsage":
            return ConfigError(f"{error.option_name} needs a value", hint=help_hint)
        case _ if message.startswith("No such command"):
            return _unknown_command(arguments, help_hint)
        case _ if "unexpected extra argument" in message:
            extra = message.rpartition("(")[2].rstrip(")")
            return ConfigError(
                f"one argument too many: {extra}",
                hint="quote a text with spaces; several files go through stdin, as in: "
                "cat a.jsonl b.jsonl | redline run -",
            )
        case _:
            return ConfigError(message[:1].lower() + message[1:].rstrip("."), hint=help_hint)


def _unknown_command(arguments: list[str], help_hint: str) -> ConfigError:
    name = _name_in(arguments)
    return ConfigError(f"unknown command: {name}", hint=nearest(name, _COMMANDS) or help_hint)


def _name_in(arguments: list[str]) -> str:
    """The command's name; the program's own flags take no values."""
    return next((word for word in arguments if not word.startswith("-")), "")
