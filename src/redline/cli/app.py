"""Lists the commands, runs one, and turns its errors into text and an exit status."""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
from pathlib import Path

import click
from click import Context, Option
from click.exceptions import Exit
from click.shell_completion import get_completion_class

from redline import _start
from redline._version import __version__
from redline.cli.flags import Group
from redline.cli.session import (
    error_text,
    forget_stdout,
    hold_standard_streams,
    say,
    tell,
    without_secret,
)
from redline.errors import ConfigError, JournalError, RedlineError, nearest
from redline.job import GivenUp
from redline.process import lasting

USAGE, DEFECT, INTERRUPTED = 2, 3, 130
# Hints by errno, for paths that the user has no permission for or that cannot exist.
_REFUSALS = dict.fromkeys(
    (errno.EACCES, errno.EPERM), "check the permissions of its folder, or choose another path"
) | {errno.ENAMETOOLONG: "choose a shorter name"}
_WANT = ConfigError(
    "the operating system refuses this process more memory or threads",
    hint="raise the limit: `ulimit -v`, `ulimit -u` or the container's; or, for a run, lower "
    "--concurrency; its results on disk are safe; with -o, the same command resumes it",
)

# The module (see `Group`) and the description of each command, by name.
_COMMANDS = {
    "run": ("run", "Send every row of a file to an endpoint."),
    "eval": ("evaluate", "Ask the questions of a test set and score the answers."),
    "synth": ("synth", "Generate texts from a prompt, without near-duplicates."),
    "tag": ("tag", "Tag every row with labels, or with JSON that follows a schema."),
    "status": ("results.status", "Show the state of a job, and what holds it back."),
    "show": ("results.show", "Show the contents of a results file."),
    "compare": ("results.compare", "Compare two results files row by row."),
    "report": ("results.report", "Write a shareable report on a job."),
    "verify": ("results.verify", "Check that a results file is complete."),
    "repair": ("results.repair", "Move damaged lines out of a results file."),
    "bench": ("bench.bench", "Measure the throughput and latency of a target."),
    "engine": ("engine", "Serve a local model through an OpenAI-compatible API."),
    "serve": ("serve", "Serve many endpoints behind one OpenAI-compatible address."),
    "fleet": ("fleet", "Serve a model with replicas that scale with the load."),
    "keys": ("keys.keys", "Manage the API keys of redline serve."),
    "sim": ("sim", "Simulate a provider for testing."),
    "route": ("route", "Compare strategies for balancing calls across endpoints."),
}
# Words that users may try in place of these commands, such as their names in other programs.
_SYNONYMS = {
    "run": "start exec execute batch process resume continue",
    "eval": "evaluate test score",
    "synth": "synthesize generate",
    "tag": "label classify annotate extract",
    "status": "progress watch monitor top ps",
    "show": "inspect view cat head stats summary look",
    "compare": "diff",
    "report": "page html chart plot graph",
    "verify": "check validate proof",
    "repair": "fix recover",
    "bench": "benchmark throughput load loadtest perf measure stress",
    "serve": "gateway proxy server router frontend",
    "fleet": "autoscale scale up cluster replicas deploy",
    "keys": "key apikey token tokens secret tenant tenants",
    "sim": "simulate mock fake",
    "route": "balance replay",
}
_HELP = """Run large numbers of LLM calls as fast as rate limits allow, without losing any.

    A file of rows goes in, a file of answers comes out. Try it without a provider or a key, against
    a simulated server:

        echo '{"text": "It will not start."}' > tickets.jsonl
        redline run tickets.jsonl --prompt 'Classify: {{ text }}' --endpoint sim

    redline COMMAND --help explains each command.
    """


def program() -> Group:
    """Returns the command `redline`, a group of all the commands."""
    params: list[click.Parameter] = [
        Option(
            ["-V", "--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Print the version.",
        ),
        Option(
            ["--show-completion"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_completion,
            help="Print the completion script for $SHELL, to add to its startup file.",
        ),
    ]
    return Group("redline", _COMMANDS, params, _HELP)


def _show_version(ctx: Context, param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        say(f"redline {__version__}\n")
        raise Exit(0)


def _show_completion(ctx: Context, param: click.Parameter, is_wanted: bool) -> None:
    """Prints the completion script for the shell that $SHELL names, and exits.

    Raises ConfigError if $SHELL is not set or names an unknown shell.
    """
    if not is_wanted or ctx.resilient_parsing:
        return
    shell = Path(os.environ.get("SHELL", "")).stem
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(
            f"there is no completion for the shell {shell}" if shell else "$SHELL is not set",
            hint="set it: SHELL=bash redline --show-completion; zsh and fish work as well",
        )
    say(kind(ctx.command, {}, "redline", "_REDLINE_COMPLETE").source())
    raise Exit(0)


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with its status. argv: without the program's name."""
    hold_standard_streams()
    # Imported modules live until the process ends: the garbage collector need not examine them.
    gc.freeze()
    _start.collect_rarely()
    given = sys.stderr
    # Warnings, tracebacks and the interpreter's flush at exit must survive a closed stderr, too.
    sys.stderr = lasting(given)
    status = _status(sys.argv[1:] if argv is None else argv)
    if argv is not None:
        sys.stderr = given
    else:
        # Remaining objects end with the process: the collector need not examine them at exit.
        gc.freeze()
    sys.exit(status)


def _status(arguments: list[str]) -> int:
    """Runs one command, reports its errors on stderr, and returns the exit status."""
    command = program()
    try:
        _start.give_way()
        status = command.main(
            args=arguments,
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
        # The reader has closed the pipe, as `head` does: no error.
        forget_stdout()
        return 0
    except GivenUp as error:
        tell(f"{error}\n")
        # Abandoned work must not delay the end of the process.
        os._exit(INTERRUPTED)
    except (KeyboardInterrupt, click.Abort):
        tell("interrupted\n")
        return INTERRUPTED
    except Exception as error:
        # The process boundary.
        if isinstance(error, click.ClickException):
            tell(error_text(_usage(error, arguments)))
            return USAGE
        if isinstance(error, OSError) and error.filename and error.errno in _REFUSALS:
            refused = f"cannot use {error.filename}: {error.strerror}"
            tell(error_text(ConfigError(refused, hint=_REFUSALS[error.errno])))
            return USAGE
        if _is_want(error):
            tell(error_text(_WANT))
            return USAGE
        tell(
            f"{traceback.format_exc()}\nerror: this is a defect in redline, not in your input\n\n"
            "hint: report it with the lines above; results that are on disk are safe\n"
        )
        return DEFECT


def _is_want(error: BaseException) -> bool:
    """Whether the error means that the system refused memory or a thread."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_want, error.exceptions))
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"


def _command_hint(name: str, context: Context | None) -> str:
    if context is not None and context.parent is not None:
        assert isinstance(context.command, click.Group)
        return nearest(name, context.command.list_commands(context))
    for command, words in _SYNONYMS.items():
        if name.lower() in words.split():
            return f"did you mean {command}?"
    return nearest(name, _COMMANDS)


def _usage(error: click.ClickException, arguments: list[str]) -> ConfigError:
    """Converts click's usage error; for an unknown name, the hint suggests the nearest one."""
    context: Context | None = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"redline {arguments[0]}"
    help_hint = f"see {path} --help"
    words = [] if context is None else context.command.collect_usage_pieces(context)
    usage = f"{' '.join([path, *words])}; {help_hint}"
    match error:
        case click.NoSuchOption() if context is not None:
            # Imported here: only an unknown flag needs it.
            from redline.job.settings import meant

            known = [name for param in context.command.params for name in param.opts]
            hint = meant(error.option_name, known) or help_hint
            return ConfigError(f"unknown flag: {error.option_name}", hint=hint)
        case click.MissingParameter() if error.param is not None:
            return ConfigError(f"{error.param.metavar} is missing", where=path, hint=usage)
        case click.BadOptionUsage():
            needs = "takes no value" if "does not take" in error.message else "needs a value"
            return ConfigError(f"{error.option_name} {needs}", hint=help_hint)
        case click.exceptions.NoSuchCommand():
            name = error.command_name
            hint = _command_hint(name, context) or help_hint
            return ConfigError(f"unknown command: {name}", hint=hint)
        case _ if "unexpected extra argument" in error.message:
            extra = error.message.rpartition("(")[2].rstrip(")").split(" ")
            if context is not None and any(one.name == "prompt" for one in context.command.params):
                usage = "quote text with spaces"
                if "INPUT" in words:
                    several = f"cat a.jsonl b.jsonl | {path} -"
                    usage += f"; pass several files through stdin, as in: {several}"
            what = "too many arguments" if "arguments" in error.message else "one argument too many"
            named = " ".join(map(without_secret, extra))
            return ConfigError(f"{what}: {named}", hint=usage)
        case _:
            message = error.format_message()
            return ConfigError(message[:1].lower() + message[1:].rstrip("."), hint=help_hint)
