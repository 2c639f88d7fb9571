"""The command line: commands, and the one place where errors become text and exit status."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer
from typer import Option, Typer

from redline._version import __version__
from redline.cli.present import error_text
from redline.cli.run import run
from redline.cli.sim import sim
from redline.cli.verify import verify
from redline.errors import RedlineError, nearest

USAGE, DEFECT, INTERRUPTED = 2, 3, 130

app = Typer(
    name="redline",
    help="Run very many LLM calls as fast as their limits allow, and lose none of them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", no_args_is_help=True)(run)
app.command("verify", no_args_is_help=True)(verify)
app.command("sim")(sim)


@app.callback()
def _root(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
) -> None:
    """Run very many LLM calls as fast as their limits allow, and lose none of them."""


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with its status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:
        sys.stdout.write(f"redline {__version__}\n")
        return
    sys.exit(_status(arguments))


def _status(arguments: list[str]) -> int:
    """The exit status of one command; whatever went wrong is told on stderr."""
    command = typer.main.get_command(app)
    try:
        status = command.main(args=arguments, prog_name="redline", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except RedlineError as error:
        sys.stderr.write(error_text(error))
        return USAGE
    except BrokenPipeError:
        # Whoever read our output has what they wanted; the interpreter must not flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        # The process's boundary. Usage errors are known by the one method that they share.
        if hasattr(error, "format_message"):
            sys.stderr.write(_usage_text(error, error.format_message()))
            return USAGE
        traceback.print_exc()
        sys.stderr.write(
            "\nerror: this is a defect in redline, not in your input\n\n"
            "hint: report it with the lines above; results that are on disk are safe\n"
        )
        return DEFECT


def _usage_text(error: Exception, message: str) -> str:
    """A usage error in redline's form, with the nearest flag for an unknown one."""
    hint = ""
    context = getattr(error, "ctx", None)
    wrong = getattr(error, "option_name", None)
    if context is not None:
        known = [name for param in context.command.params for name in param.opts]
        if wrong is not None:
            message = f"unknown flag: {wrong}"
            hint = nearest(wrong, known)
        hint = hint or f"{context.command_path} --help lists what there is"
    lines = [f"error: {message}"]
    return "\n".join([*lines, "", f"hint: {hint}"] if hint else lines) + "\n"
