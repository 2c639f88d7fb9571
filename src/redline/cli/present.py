"""What a person reads: errors, summaries and plans, in plain text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from redline.errors import RedlineError
from redline.run.plan import Plan
from redline.run.progress import duration
from redline.run.report import Report

_CONTINUING = frozenset({"--restart"})


def error_text(error: RedlineError, saved: str = "") -> str:
    """The error as three short parts: what and where, what is safe, what to do."""
    lines = [f"error: {error.what}"]
    if error.where:
        lines.append(f"where: {error.where}")
    if saved:
        lines.append(f"saved: {saved}")
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    return "\n".join(lines) + "\n"


def saved_text(report: Report) -> str:
    """`87 of 500 results in labels.jsonl`, or nothing where no file is written."""
    if report.output is None:
        return ""
    done = report.succeeded + report.failed + report.skipped
    of = f" of {report.offered + report.skipped:,}" if report.is_input_done else ""
    return f"{done:,}{of} results in {report.output.path}"


def summary_text(report: Report, argv: Sequence[str]) -> str:
    """The run in a few lines whose numbers add up, and the command that goes on from here."""
    lines = [
        f"{report.offered:,} rows = {report.succeeded:,} succeeded + {report.failed:,} failed "
        f"+ {report.unfinished:,} unfinished"
    ]
    if report.skipped:
        lines[0] += f"; {report.skipped:,} were done before"
    if not report.is_input_done:
        lines[0] += "; the input is not read to its end"
    per_s = report.attempts / report.elapsed_s if report.elapsed_s > 0 else 0.0
    lines.append(
        f"{duration(report.elapsed_s)}, {report.attempts:,} requests at {per_s:.1f}/s, "
        f"{report.retries:,} retries, {report.rate_limited:,} x 429, "
        f"at most {report.most_in_flight:,} in flight"
    )
    if report.input_tokens or report.output_tokens:
        lines.append(f"{report.input_tokens:,} tokens in, {report.output_tokens:,} out")
    if report.errors_by_kind:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.errors_by_kind.items())
        lines.append(f"failed attempts: {kinds}")
    if report.output is not None:
        lines.append(f"results: {report.output.path}")
        if report.output.failed_path.exists():
            lines.append(f"failures: {report.output.failed_path} (--retry-failed tries them again)")
        if not report.is_complete:
            lines.append(f"continue with: {_command(argv)}")
    return "\n".join(lines) + "\n"


def summary_fields(report: Report, argv: Sequence[str]) -> dict[str, Any]:
    """The summary for programs, as `--log json` prints it."""
    return {
        "event": "summary",
        "offered": report.offered,
        "succeeded": report.succeeded,
        "failed": report.failed,
        "unfinished": report.unfinished,
        "skipped": report.skipped,
        "attempts": report.attempts,
        "retries": report.retries,
        "rate_limited": report.rate_limited,
        "most_in_flight": report.most_in_flight,
        "input_tokens": report.input_tokens,
        "output_tokens": report.output_tokens,
        "elapsed_s": round(report.elapsed_s, 3),
        "errors_by_kind": report.errors_by_kind,
        "is_input_done": report.is_input_done,
        "output": str(report.output.path) if report.output is not None else None,
        "continue_with": None if report.is_complete else _command(argv),
    }


def plan_text(plan: Plan) -> str:
    """A dry run's findings."""
    lines = [f"{plan.rows:,} rows, of which {plan.bad_rows:,} cannot be sent"]
    if plan.first_problem:
        lines.append(f"the first of these is {plan.first_problem}")
    tokens = plan.input_tokens + plan.output_tokens
    lines.append(
        f"about {tokens:,} tokens: {plan.input_tokens:,} in, and up to {plan.output_tokens:,} out"
    )
    if plan.bound is None:
        lines.append("no limit is set: the server and the concurrency decide the time")
    else:
        lines.append(f"at least {duration(plan.limit_s)}, bound by {plan.bound}")
    if plan.first_request is not None:
        shown = msgspec.json.format(msgspec.json.encode(plan.first_request), indent=2).decode()
        lines.append(f"the first request:\n{shown}")
    return "\n".join(lines) + "\n"


def _command(argv: Sequence[str]) -> str:
    """The command that continues: the same, but it must not start over again."""
    return shlex.join(["redline", *(word for word in argv if word not in _CONTINUING)])
