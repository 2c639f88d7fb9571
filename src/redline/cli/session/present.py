"""Formats errors, summaries and plans as plain text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import msgspec

from redline.apis import loose_json
from redline.calls.cost import DOLLAR, dollars_text
from redline.cli.session.output import Notes
from redline.errors import ConfigError, RedlineError
from redline.job import Plan
from redline.job.show import InputCounts, Report
from redline.job.show import notices as troubles
from redline.journal import Output, ResultsLost, error_fields, flaws_text
from redline.process import counted, duration, three_digits
from redline.store import url_of

# The fields of a report that are in the summary for programs, in order.
_TOLD = (
    *("offered", "succeeded", "failed", "unfinished", "skipped", "untried", "input"),
    *("attempts", "retries", "rate_limited", "most_in_flight", "input_tokens"),
    *("output_tokens", "spent_usd", "expected_usd", "spent_tokens", "elapsed_s"),
    *("errors_by_kind", "found_limits", "is_input_done"),
)
# Further fields, which are left out if they are None, 0 or empty.
_REPEATED = ("repeated", "failovers")
_ADDED = (
    *("outages", "endpoints", "abandoned", "not_traced", "not_recorded"),
    *("not_notified", "not_exported", "batches"),
)
# How to try failed rows again.
_AGAIN = "--retry-failed tries them again"
_AGAIN_OF_STREAM = "to try them again, run the rows in their `input` with another -o"
_CREDENTIALS = re.compile("//.*@")
# A parameter that Redis reads from a URL.
_PASSWORD = re.compile("([?&]password=)[^&]*")
# A flag and its value in one word: `--share=URL` or `-oURL`.
_JOINED = re.compile("(?P<flag>--[^=]+=|-[a-z])(?P<value>.+)", re.DOTALL)


def error_text(error: RedlineError, saved: str = "") -> str:
    """Formats an error in three short parts: what went wrong and where, what is saved, a remedy."""
    lines = [f"error: {error.what}"]
    if error.where:
        lines.append(f"where: {error.where}")
    if saved:
        lines.append(f"saved: {saved}")
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    return "\n".join(lines) + "\n"


def summary_text(report: Report, argv: Sequence[str], notes: Notes) -> str:
    """Sums up a run in a few lines: numbers that add up, why it stopped, and how to continue it.

    argv: the command line without the program's name. notes: has the run's first failure.
    """
    stopped = report.stopped
    if not report.offered and not report.skipped and isinstance(stopped, ConfigError):
        return error_text(stopped)
    text = "".join(f"{line}\n" for line in _summary(report, argv, notes))
    return text if stopped is None else f"{text}\n{error_text(stopped, _saved(report))}"


def _summary(report: Report, argv: Sequence[str], notes: Notes) -> Iterator[str]:
    yield _sum(report)
    if report.input is not None and report.input.left and not report.is_complete:
        yield report.input.text()
    yield from _flaw_lines(report, argv)
    if report.attempts:
        per_s = report.attempts / report.elapsed_s if report.elapsed_s > 0 else 0.0
        yield (
            f"{duration(report.elapsed_s)}, {counted(report.attempts, 'request')} at "
            f"{three_digits(per_s)}/s, {counted(report.retries, 'retry', 'retries')}, "
            f"{report.rate_limited:,} x 429, at most {report.most_in_flight:,} in flight"
        )
    if report.repeated:
        yield (
            f"{counted(report.repeated, 'request')} sent twice, because the answer on a reused "
            "connection was missing or in doubt; the server may have processed both"
        )
    if report.failovers:
        yield (
            f"{counted(report.failovers, 'request')} sent to another endpoint after a failed "
            "attempt, which may have been billed as well"
        )
    if report.input_tokens or report.output_tokens:
        yield f"{counted(report.input_tokens, 'token')} in, {report.output_tokens:,} out"
    if report.spent.text:
        yield _spent(report)
    yield from _cache_lines(report)
    yield from _trace_lines(report)
    yield from _batch_lines(report)
    if report.found_limits:
        yield f"limits found: {', '.join(report.found_limits)}"
    yield from _endpoint_lines(report)
    if report.errors_by_kind:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.errors_by_kind.items())
        yield f"failed attempts: {kinds}"
    if report.abandoned:
        yield f"abandoned: {'; '.join(report.abandoned)}"
    if report.output is not None:
        yield from _files(report, report.output, notes)
    if command := _command(report, argv):
        yield f"continue with: {command}"


def summary_line(report: Report, argv: Sequence[str], notes: Notes) -> str:
    """Returns the summary for programs: one line of JSON, as `--log json` prints it.

    argv, notes: as for `summary_text`.
    """
    output, counts = report.output, report.input
    fields: dict[str, object] = {
        "event": "summary",
        **{name: getattr(report, name) for name in _TOLD},
        "input": counts and {**msgspec.to_builtins(counts), "left": counts.left},
        "elapsed_s": round(report.elapsed_s, 3),
        "is_interrupted": report.interrupted,
        "first_failure": error_fields(notes.first_failure),
        "stopped": error_fields(report.stopped),
        "output": output and output.name,
        "continue_with": _command(report, argv),
        **_if_any(report, _REPEATED),
    }
    if report.cache is not None or report.cache_notes:
        fields["cache"] = {**msgspec.to_builtins(report.cache or {}), "notes": report.cache_notes}
    if report.flawed:
        fields["results"], fields["flawed"] = report.results, report.flawed
    fields |= _if_any(report, _ADDED)
    if output is not None and output.url is not None:
        fields["kept_in"] = str(output.path)
        fields["not_uploaded"] = error_fields(report.not_uploaded)
    return loose_json.encoded(fields).decode() + "\n"


def _if_any(report: Report, names: Collection[str]) -> dict[str, object]:
    """Returns the fields of these names that are not None, 0 or an empty list."""
    found = {name: getattr(report, name) for name in names}
    return {
        name: msgspec.to_builtins(value)
        for name, value in found.items()
        if value not in (None, 0, [])
    }


def _flaw_lines(report: Report, argv: Sequence[str]) -> Iterator[str]:
    """Yields a line on successes that are cut, empty or refused, and a remedy."""
    if not report.flawed:
        return
    line = f"{report.results:,} succeeded, of which {flaws_text(report.flawed)}"
    if argv[:1] == ["run"] and not any(word.startswith("--fail-on") for word in argv):
        line += f": --fail-on {','.join(report.flawed)}"
    elif "length" in report.flawed:
        line += ": raise --max-tokens"
    yield line


def _endpoint_lines(report: Report) -> Iterator[str]:
    """Yields lines on endpoints that answered or were removed, and on their outages."""
    each = report.endpoints
    if any(one.answered for one in each):
        yield f"answered by: {', '.join(f'{one.name} {one.answered:,}' for one in each)}"
    yield from [
        f"endpoint {one.name} was removed from the run: {one.out}" for one in each if one.out
    ]
    outages = [one.outages for one in each] if each else [report.outages]
    told = [troubles.outages_ended(one) for one in outages]
    told += [troubles.failing_ended(one.failing) for one in each]
    yield from filter(None, told)


def _cache_lines(report: Report) -> Iterator[str]:
    """Yields lines on calls that the cache saved and requests it did not cache, and its notes."""
    use = report.cache
    if use is not None and (use.spared or use.misses):
        yield (
            f"cache: {counted(use.hits, 'hit')}, {use.shared:,} shared in flight, "
            f"{counted(use.misses, 'miss', 'misses')}: {100 * use.share:.0f} % of requests saved"
        )
    if use is not None and use.passed:
        yield (
            f"cache: {counted(use.passed, 'request is', 'requests are')} not cached, because "
            "answers may vary; see --temperature 0, --param seed=7, --cache-sampled"
        )
    for note in report.cache_notes:
        yield f"cache: {note}"


def _trace_lines(report: Report) -> list[str]:
    """Returns lines on records of the run that are incomplete or undelivered, with reasons."""
    ends = "is incomplete (results are not affected):"
    lines = (
        report.not_traced and f"the trace {ends} {report.not_traced}",
        report.not_recorded and f"the timeline {ends} {report.not_recorded}",
        report.not_notified,
        report.not_exported,
    )
    return list(filter(None, lines))


def _batch_lines(report: Report) -> Iterator[str]:
    """Yields lines on the rows sent in batches, and on batches that are still at the provider."""
    use = report.batches
    if use is None:
        return
    again = f", {counted(use.again, 'row')} sent again" if use.again else ""
    yield f"batches: {use.made:,} made, {counted(use.answered, 'row')} answered{again}"
    if use.running:
        yield (
            f"still at the provider: {counted(use.running, 'batch', 'batches')}, "
            f"{counted(use.rows, 'row')} in all; run the same command again to collect the "
            "answers, or with --via live to cancel the batches"
        )


def plan_text(plan: Plan, *, has_output: bool) -> str:
    """Describes the result of a dry run. has_output: whether the job has an output file."""
    parts = [f"{plan.sent_rows:,} to send", f"{plan.bad_rows:,} that cannot be sent"]
    if has_output:
        parts.insert(0, f"{plan.done_rows:,} done already")
    parts += _untried(plan.untried_rows)
    lines = [f"{counted(plan.rows, 'row')} = {' + '.join(parts)}"]
    if plan.first_problem:
        lines.append(f"the first row that cannot be sent: {plan.first_problem}")
    if plan.sent_rows:
        if plan.following:
            lines.append(
                f"{counted(plan.requests, 'request')}: {plan.sent_rows:,} for the rows, and "
                f"{plan.following:,} to judge their answers"
            )
        tokens = plan.input_tokens + plan.output_tokens
        most = "up to " if plan.following else ""
        off = f" (±{100 * plan.input_error:.0f} %)" if plan.input_error else ""
        lines.append(
            f"about {counted(tokens, 'token')}: {most}{plan.input_tokens:,} in{off}, "
            f"and up to {plan.output_tokens:,} out"
        )
        if plan.is_batched:
            lines.append(
                "the provider determines how long batches take; rate limits do not apply to them"
            )
        elif not plan.limit_s:
            lines.append(
                "the limits require no wait: the server and the concurrency determine the time"
            )
        elif plan.least_s < plan.limit_s:
            least = f"at least {duration(plan.least_s)}, and " if plan.least_s else ""
            lines.append(
                f"{least}{duration(plan.limit_s)} if every answer has the maximum length; "
                f"bound by {plan.bound}"
            )
        else:
            lines.append(f"at least {duration(plan.limit_s)}, bound by {plan.bound}")
        if plan.most_reasks:
            lines.append(
                "not counted: re-asks after an answer that is not accepted, at most "
                f"{counted(plan.most_reasks, 'time')} per row"
            )
    if plan.first_request is not None:
        shown = msgspec.json.format(loose_json.encoded(plan.first_request), indent=2).decode()
        lines.append(f"the first request:\n{shown}")
    return "\n".join(lines) + "\n"


def _sum(report: Report) -> str:
    counts, parts = report.input, list[str]()
    untried = _untried(report.untried)
    if counts is not None and not report.offered and report.is_input_done and not counts.left:
        if not counts.rows:
            return "Nothing to do: no new rows"
        parts.append(f"Nothing to do: {counts.done:,} done")
        if counts.failed:
            parts.append(f"{counts.failed:,} failed")
        return ", ".join(parts + untried)
    parts.append(
        f"{counted(report.offered, 'row')} = {report.succeeded:,} succeeded + {report.failed:,} "
        f"failed + {report.unfinished:,} unfinished"
    )
    if done_before := report.skipped - report.failed_before:
        parts.append(f"{done_before:,} {'was' if done_before == 1 else 'were'} done before")
    if report.failed_before:
        parts.append(f"{report.failed_before:,} failed before")
    parts += untried
    if not report.is_input_done:
        parts.append("the input was not read to its end")
    return "; ".join(parts)


def _untried(rows: int) -> list[str]:
    return [f"{rows:,} untried, which --retry-failed leaves out"] if rows else []


def _spent(report: Report) -> str:
    """Returns the spending and, if rows are left, an estimate that includes them."""
    is_of_all = not report.skipped or report.spent.is_of_all_runs
    line = f"spent{'' if is_of_all else ' by this run'}: {report.spent.text}"
    left = report.unfinished if report.input is None else report.input.left
    if not left or report.expected_usd is None:
        return line
    return f"{line}; about {dollars_text(round(report.expected_usd * DOLLAR))} with the rows left"


def _files(report: Report, output: Output, notes: Notes) -> Iterator[str]:
    lost = report.not_uploaded
    if output.url is None:
        yield f"results: {output.path}"
    elif lost is None:
        yield f"results: {output.name}, uploaded; also in {output.path}"
    else:
        why = "" if report.stopped is lost else f": {lost}"
        yield f"results: {output.path}, on this machine only"
        yield f"not uploaded: {output.name}{why}"
    if output.failed_path.exists():
        name = output.failed_path if lost is not None else output.failed_name
        yield f"failures: {name} ({_AGAIN_OF_STREAM if report.is_of_stream else _AGAIN})"
    # The error that stopped the run is shown below in full.
    if notes.first_failure is not None and report.stopped is None:
        yield f"first failure: {notes.first_failure}"


def _saved(report: Report) -> str:
    """Returns text such as `87 of 500 results in labels.jsonl`; empty if no file is written."""
    if report.output is None:
        return ""
    if isinstance(report.stopped, ResultsLost):
        return report.stopped.saved
    counts = report.input or InputCounts(
        rows=report.offered + report.skipped,
        done=report.succeeded + report.skipped,
        failed=report.failed,
    )
    of = f" of {counts.rows:,}" if report.is_input_done else ""
    results = "result" if counts.done == 1 and not of else "results"
    # The number of failures is unknown: --retry-failed counts rows that it did not retry as left.
    failures = ", failures beside it" if report.output.failed_path.exists() else ""
    is_here = report.output.url is None or report.not_uploaded is not None
    place = report.output.path if is_here else report.output.name
    return f"{counts.done:,}{of} {results} in {place}{failures}"


def _command(report: Report, argv: Sequence[str]) -> str | None:
    """Returns the command that continues the job: the same one, without --restart.

    None for a job that is done or has no output. If only untried rows are left, --retry-failed is
    dropped as well, so that they are sent. `...` replaces possible secrets.
    """
    if report.output is None or report.is_complete:
        return None
    is_mended = report.untried and report.is_input_done and not report.unfinished
    dropped = {"--restart", "--retry-failed"} if is_mended else {"--restart"}
    kept = ["redline", *(word for word in argv if word not in dropped)]
    shown = [without_secret(word, before) for before, word in pairwise(kept)]
    return shlex.join(["redline", *shown])


def without_secret(word: str, flag: str = "") -> str:
    """Returns a word of the command line with `...` in place of possible secrets.

    flag: the word before it, which may be a flag whose value is secret.
    """
    if flag == "--header":
        return f"{word.partition(':')[0]}: ..."
    if flag == "--proxy":
        # The user and the password come before the @.
        return _CREDENTIALS.sub("//...@", word)
    if (joined := _JOINED.fullmatch(word)) is not None:
        return joined["flag"] + without_secret(joined["value"], joined["flag"].rstrip("="))
    # A prompt may begin with a URL, too, but a space follows.
    url = None if " " in word else url_of(word)
    return word if url is None else _PASSWORD.sub(r"\1...", url.name)
