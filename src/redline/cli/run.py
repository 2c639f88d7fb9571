"""`redline run`: a file of rows through an endpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from typer import Argument, Context, Exit, Option

from redline.cli import configuration as configurations
from redline.cli.output import run_to_stdout
from redline.cli.present import error_text, plan_text, saved_text, summary_fields, summary_text
from redline.cli.resolve import make_job
from redline.errors import ConfigError
from redline.run import Report, run_job
from redline.run.execute import Display
from redline.run.plan import plan
from redline.run.progress import JsonProgress, PlainProgress, TerminalProgress

_PROMPT, _ENDPOINT, _LIMITS = "How a row becomes a request", "Who answers", "How fast"
_OUTPUT, _END = "What comes out", "When to give up"

# Flags that decide nothing about the job itself.
_NOT_SETTINGS = ("rows", "dry_run", "ctx")

Text = str | None


def run(
    ctx: Context,
    rows: Annotated[
        str,
        Argument(
            metavar="INPUT",
            help="A .jsonl, .csv, .tsv or .parquet file (.gz and .zst too), a datasets folder, or "
            "- for stdin. A row is any set of columns with --prompt, or has `messages`, `prompt`, "
            "`input`, or `url` and `body` (OpenAI Batch).",
        ),
    ],
    prompt: Annotated[
        Text,
        Option(
            metavar="TEMPLATE",
            help="Jinja template of the user message, such as 'Classify: {{ text }}'. "
            "@FILE reads it from a file.",
            rich_help_panel=_PROMPT,
        ),
    ] = None,
    system: Annotated[
        Text,
        Option(metavar="TEMPLATE", help="Template of a system message.", rich_help_panel=_PROMPT),
    ] = None,
    model: Annotated[
        Text, Option(metavar="NAME", help="The model to ask.", rich_help_panel=_PROMPT)
    ] = None,
    temperature: Annotated[
        float | None, Option(metavar="T", help="Sampling temperature.", rich_help_panel=_PROMPT)
    ] = None,
    max_tokens: Annotated[
        int | None,
        Option(metavar="N", help="Most tokens in an answer.", rich_help_panel=_PROMPT),
    ] = None,
    param: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Any other body field, its value as JSON or text: seed=7. Repeatable.",
            rich_help_panel=_PROMPT,
        ),
    ] = None,
    url: Annotated[
        Text,
        Option(
            metavar="PATH",
            help="Path of the API, default /v1/chat/completions; /v1/completions, /v1/embeddings "
            "and /v1/responses are known, any other is plain JSON. May be a template.",
            rich_help_panel=_PROMPT,
        ),
    ] = None,
    method: Annotated[
        Text, Option(metavar="METHOD", help="HTTP method, default POST.", rich_help_panel=_PROMPT)
    ] = None,
    body: Annotated[
        Text,
        Option(
            metavar="TEMPLATE",
            help="Template of the whole JSON body: '{\"q\": {{ text | json }}}'. @FILE reads it.",
            rich_help_panel=_PROMPT,
        ),
    ] = None,
    output_path: Annotated[
        Text,
        Option(
            metavar="PATH",
            help="Where a plain JSON answer holds the output: result.items.0.text.",
            rich_help_panel=_PROMPT,
        ),
    ] = None,
    endpoint: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="A URL, a name from redline.toml, or sim, an embedded simulated server.",
            rich_help_panel=_ENDPOINT,
        ),
    ] = None,
    base_url: Annotated[
        Text,
        Option(
            metavar="URL",
            help="Base URL ending in /v1; default $OPENAI_BASE_URL, then OpenAI.",
            rich_help_panel=_ENDPOINT,
        ),
    ] = None,
    api_key_env: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="Variable that holds the key, in the environment or .env; default OPENAI_API_KEY.",
            rich_help_panel=_ENDPOINT,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        Option(
            metavar="'NAME: VALUE'",
            help="Header sent with every request. Repeatable.",
            rich_help_panel=_ENDPOINT,
        ),
    ] = None,
    proxy: Annotated[
        Text,
        Option(
            metavar="URL",
            help="HTTP proxy; default from HTTPS_PROXY and NO_PROXY.",
            rich_help_panel=_ENDPOINT,
        ),
    ] = None,
    rps: Annotated[
        Text, Option(metavar="N", help="Requests a second.", rich_help_panel=_LIMITS)
    ] = None,
    rpm: Annotated[
        Text, Option(metavar="N", help="Requests a minute.", rich_help_panel=_LIMITS)
    ] = None,
    tpm: Annotated[
        Text,
        Option(metavar="N", help="Tokens a minute, such as 200k.", rich_help_panel=_LIMITS),
    ] = None,
    requests: Annotated[
        list[str] | None,
        Option(
            metavar="N/W",
            help="Any request limit, such as 2/1s. Repeatable; all hold at once.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        Option(
            metavar="N/W",
            help="Any token limit, such as 200k/60s. Repeatable.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        Option(
            "-c",
            "--concurrency",
            metavar="N",
            help="Most requests in flight; default 64, or what the request limit can use.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    profile: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="How the server counts: any (safe against all, the default), fixed, moving, "
            "counter or bucket.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    headroom: Annotated[
        float | None,
        Option(
            metavar="SHARE",
            help="Share of each rate to use: 0.8 leaves a fifth to others.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    output: Annotated[
        Text,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Results, one JSON line each; the same command continues it. Default: stdout, "
            "which cannot be continued.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    format: Annotated[
        Text,
        Option(
            metavar="NAME",
            help="redline (the default), or batch: lines of the OpenAI Batch API.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    ordered: Annotated[
        bool,
        Option("--ordered", help="Sort the finished file by input.", rich_help_panel=_OUTPUT),
    ] = False,
    keep_input: Annotated[
        bool,
        Option("--keep-input", help="Repeat the row in its result.", rich_help_panel=_OUTPUT),
    ] = False,
    raw: Annotated[
        bool, Option("--raw", help="Keep the whole reply as well.", rich_help_panel=_OUTPUT)
    ] = False,
    retry_failed: Annotated[
        bool,
        Option(
            "--retry-failed",
            help="Do just the rows that failed before.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    restart: Annotated[
        bool,
        Option(
            "--restart",
            help="Start over; the old results are kept as FILE.old-N.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Continue an output that was begun with other settings.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    max_retries: Annotated[
        int | None,
        Option(metavar="N", help="Attempts after the first; default 8.", rich_help_panel=_END),
    ] = None,
    timeout: Annotated[
        Text,
        Option(
            metavar="TIME", help="One attempt: 30, 500ms, 5m. Default 10m.", rich_help_panel=_END
        ),
    ] = None,
    connect_timeout: Annotated[
        Text, Option(metavar="TIME", help="One connection; default 10.", rich_help_panel=_END)
    ] = None,
    first_byte_timeout: Annotated[
        Text,
        Option(
            metavar="TIME", help="The answer's first byte; default --timeout.", rich_help_panel=_END
        ),
    ] = None,
    row_deadline: Annotated[
        Text, Option(metavar="TIME", help="A row with its retries.", rich_help_panel=_END)
    ] = None,
    deadline: Annotated[
        Text,
        Option(
            metavar="TIME", help="The run; the same command continues it.", rich_help_panel=_END
        ),
    ] = None,
    limit: Annotated[
        int | None, Option(metavar="N", help="Only the first N rows.", rich_help_panel=_END)
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        Option(
            metavar="REASONS",
            help="Make answers that end in length, empty, content_filter or refusal failures.",
            rich_help_panel=_END,
        ),
    ] = None,
    strict: Annotated[
        bool, Option("--strict", help="End at the first row that fails.", rich_help_panel=_END)
    ] = False,
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Send nothing: rows, tokens, time, and the first request."),
    ] = False,
    quiet: Annotated[bool, Option("-q", "--quiet", help="No progress, only the summary.")] = False,
    log: Annotated[
        Text,
        Option(metavar="NAME", help="text (the default), or json: progress and summary as JSON."),
    ] = None,
) -> None:
    """Send every row of INPUT to an endpoint, at its limits, and lose none.

    Interrupt it anywhere and run the same command again: it continues. Rows that fail go to
    FILE.failed.jsonl with their reason.

    Example: redline run tickets.jsonl --prompt 'Classify: {{ text }}' --model gpt-4o-mini
    --rpm 500 --tpm 200k -o labels.jsonl

    Exit status: 0 all done, 1 some rows failed, 2 bad usage or settings, 130 interrupted.
    """
    known = tuple(name for name in ctx.params if name not in _NOT_SETTINGS)
    configuration = configurations.load(Path.cwd(), known)
    given = {**configuration.run, **_stated(ctx)}
    job = make_job({**given, "rows": rows}, configuration)
    if dry_run:
        sys.stdout.write(plan_text(plan(job)))
        return
    display = _display(quiet=bool(given.get("quiet")), log=str(given.get("log", "text")))
    if job.output is None:
        report = run_to_stdout(job, sys.stdout, display=display)
    else:
        report = run_job(job, display=display)
    _tell(report, is_json=given.get("log") == "json")
    raise Exit(_status(report))


def _stated(ctx: Context) -> dict[str, Any]:
    """The flags that stand on the command line."""
    return {
        name: value
        for name, value in ctx.params.items()
        if (source := ctx.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }


def _display(*, quiet: bool, log: str) -> Display | None:
    if log not in ("text", "json"):
        raise ConfigError(f"--log is text or json, not {log}")
    if quiet:
        return None
    if log == "json":
        return JsonProgress(sys.stderr)
    return TerminalProgress(sys.stderr) if sys.stderr.isatty() else PlainProgress(sys.stderr)


def _tell(report: Report, *, is_json: bool) -> None:
    argv = sys.argv[1:]
    if is_json:
        line = msgspec.json.encode(summary_fields(report, argv)).decode() + "\n"
    else:
        line = summary_text(report, argv)
    sys.stderr.write(line)
    if report.stopped is not None:
        sys.stderr.write("\n" + error_text(report.stopped, saved_text(report)))


def _status(report: Report) -> int:
    if report.interrupted:
        return 130
    if report.stopped is not None:
        return 2
    return 1 if report.failed else 0
