"""The one-outcome law: what must hold after each run of a script, whatever went wrong in it.

Every row has one outcome or is counted unfinished. What a run says of itself agrees with its files;
what it has acknowledged is there; what is done is not asked again; the last run leaves nothing
over. attempts.py has the rules of single attempts, leaks.py those of what is held.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from faults import attempts, leaks
from faults.broken import Broken, holds
from faults.files import text_of
from faults.ran import Ran
from faults.script import Script
from faults.trace import Tried
from redline.cli.session import Notes, summary_text
from redline.errors import JournalError, TimedOut
from redline.job.outputs import verify
from redline.job.settings import Job
from support.summaries import sums

__all__ = ["Broken", "check"]

# How a run can be ended so that nobody is told how it went.
_SUDDEN = ("cancel", "kill", "power")


def check(script: Script, ended: list[Ran], job: Job) -> None:
    """Raises Broken where the last of these runs, or all of them together, break the law.

    job: of the last run; its rows are for `verify`.
    """
    ran = ended[-1]
    _ends_as_it_may(ran)
    _lines_are_rows(script, ran)
    _answers_are_their_own(script, ended)
    _outcomes_are_taken_once(ran)
    _what_is_acknowledged_is_there(ran)
    _nothing_done_is_asked_again(script, ran)
    _numbers_agree(ran)
    leaks.check(script, ran)
    attempts.check(script, ended)
    if ran.run.is_last:
        _is_complete(script, ran, job)


def _is_clean(ran: Ran) -> bool:
    """It ended in order, so that all it knew is in its files and in its report."""
    is_sudden = ran.facts.ended_by in _SUDDEN or ran.report is None
    return not is_sudden and not ran.facts.has_sync_failed


def _ends_as_it_may(ran: Ran) -> None:
    error = ran.error
    if isinstance(error, asyncio.CancelledError):
        holds(ran.facts.ended_by in _SUDDEN, "the run was cancelled by nobody")
    elif isinstance(error, JournalError):
        holds(ran.facts.has_sync_failed, f"the journal failed by itself: {error!r}")
    elif error is not None:
        raise Broken(f"the run raised {error!r}")
    if ran.report is not None and isinstance(ran.report.stopped, JournalError):
        holds(ran.facts.has_sync_failed, f"it stopped by itself: {ran.report.stopped!r}")
    holds(not ran.facts.broken, "; ".join(ran.facts.broken))


def _rows_of(lines: list[dict[str, Any]]) -> Counter[int]:
    return Counter(line["row"] for line in lines)


def _lines_are_rows(script: Script, ran: Ran) -> None:
    """Each line is whole and belongs to a row, once; what was there before is there still."""
    after, before, rows = ran.after, ran.before, script.rows
    holds(not after.damaged, f"damaged lines: {after.damaged}")
    # A run that could not open its files, or died as it did, has not come to the tails that a power
    # loss left in them.
    has_begun = bool(ran.facts.tried or ran.facts.taken)
    is_cut_off = ran.facts.has_sync_failed or (ran.facts.ended_by in _SUDDEN and not has_begun)
    is_left = ran.report is None and is_cut_off and after.torn <= before.torn
    is_explained = not after.torn or is_left or ran.facts.ended_by == "power"
    holds(is_explained, f"{after.torn} bytes of half a line")
    for line in after.succeeded + after.failed:
        holds(1 <= line["row"] <= len(rows), f"a line of no row: {line}")
        value = rows[line["row"] - 1].value
        name = value.get("custom_id") if isinstance(value, dict) else None
        if name is not None and rows[line["row"] - 1].kind != "broken":
            holds(line["custom_id"] == str(name), f"a line with another row's name: {line}")
    succeeded, failed = _rows_of(after.succeeded), _rows_of(after.failed)
    twice = [row for row, count in succeeded.items() if count > 1]
    holds(not twice, f"succeeded twice: rows {twice}")
    if _is_clean(ran):
        twice = [row for row, count in failed.items() if count > 1]
        holds(not twice, f"failed twice: rows {twice}")
        both = succeeded.keys() & failed.keys()
        holds(not both, f"succeeded and failed: rows {both}")
    lost = _rows_of(before.succeeded).keys() - succeeded.keys()
    holds(not lost, f"lines of earlier runs are gone: rows {lost}")
    lost = _rows_of(before.failed).keys() - failed.keys() - succeeded.keys()
    holds(not lost, f"failures of earlier runs are gone: rows {lost}")


def _answers_are_their_own(script: Script, ended: list[Ran]) -> None:
    """A success holds a whole answer to its own row."""
    answers = {asked.text for ran in ended for asked in ran.facts.asks if asked.is_whole}
    for line in ended[-1].after.succeeded:
        text, row = text_of(line), script.rows[line["row"] - 1]
        is_own = text in answers and text.partition(" ")[0] == row.name
        holds(is_own, f"row {line['row']} has the answer {text!r}")


def _outcomes_are_taken_once(ran: Ran) -> None:
    """What came out of the retry is in the journal, once, and what is there came out of it."""
    facts = ran.facts
    taken = Counter(id(result.outcome) for result in facts.taken)
    twice = [result.row.number for result in facts.taken if taken[id(result.outcome)] > 1]
    holds(not twice, f"taken twice: rows {twice}")
    rows = Counter(result.row.number for result in facts.taken)
    holds(all(count == 1 for count in rows.values()), f"two outcomes of one row: {rows}")
    if not _is_clean(ran):
        return
    is_ending = ran.report.interrupted or ran.report.stopped is not None
    for way in facts.tried:
        outcome = way.outcome
        is_lost = (
            outcome is not None
            and not (outcome.error is not None and outcome.error.stops_run)
            and id(outcome) not in taken
            and not (is_ending and _is_cut_short(way))
        )
        holds(not is_lost, f"the outcome of {way.name} is lost: {outcome}")


def _is_cut_short(way: Tried) -> bool:
    """Its attempt on the wire failed while its run was ending: it has no outcome, it waits."""
    error, ended_s = way.outcome.error, way.ended_s
    is_late = isinstance(error, TimedOut) and error.phase == "row"
    return is_late and ended_s is not None and ended_s < way.deadline_s


def _what_is_acknowledged_is_there(ran: Ran) -> None:
    facts = ran.facts
    twice = [row for row, count in Counter(facts.acknowledged).items() if count > 1]
    holds(not twice, f"acknowledged twice: rows {twice}")
    lines = {line["row"]: (False, line["attempts"]) for line in ran.after.failed}
    lines |= {line["row"]: (True, line["attempts"]) for line in ran.after.succeeded}
    lost = set(facts.acknowledged) - lines.keys()
    holds(not lost, f"acknowledged and lost: rows {lost}")
    told = [result for result in facts.taken if result.row.number in set(facts.acknowledged)]
    for result in told:
        row, outcome = result.row.number, result.outcome
        wanted = (outcome.is_success, outcome.attempts)
        holds(lines[row] == wanted, f"row {row} has {lines[row]} in its file, not {wanted}")
    twice = [row for row, count in Counter(facts.handed).items() if count > 1]
    holds(not twice, f"handed on twice: rows {twice}")
    taken = {result.row.number for result in facts.taken}
    holds(set(facts.handed) <= taken, "handed on without an outcome")
    if _is_clean(ran):
        holds(set(facts.acknowledged) == taken, "taken and not acknowledged")
        holds(facts.aborted_s is not None or set(facts.handed) == taken, "taken and not handed on")


def _nothing_done_is_asked_again(script: Script, ran: Ran) -> None:
    before, rows = ran.before, script.rows
    succeeded, failed = _rows_of(before.succeeded).keys(), _rows_of(before.failed).keys()
    if ran.run.retry_failed:
        open_rows = {row for row in failed if row not in succeeded}
    else:
        open_rows = set(range(1, len(rows) + 1)) - succeeded - failed
    if ran.run.limit is not None:
        open_rows = {row for row in open_rows if row <= ran.run.limit}
    names = {rows[row - 1].name for row in open_rows if rows[row - 1].is_sendable}
    again = {asked.name for asked in ran.facts.asks} - names
    holds(not again, f"asked although done, or never to be asked: {again}")
    again = {result.row.number for result in ran.facts.taken} - open_rows
    holds(not again, f"done again: rows {again}")


def _numbers_agree(ran: Ran) -> None:
    """Offered = succeeded + failed + unfinished, as it is printed and as the files have it."""
    report = ran.report
    if report is None:
        return
    is_sum = report.offered == report.succeeded + report.failed + report.unfinished
    holds(is_sum and report.unfinished >= 0, f"numbers that do not add up: {report}")
    text = summary_text(report, ["run"], Notes(is_json=False))
    printed = sums(text)
    is_begun = report.offered or report.skipped
    is_idle = not report.offered and text.startswith("Nothing to do: ")
    holds(bool(printed) or is_idle or not is_begun, "no sum is printed")
    holds(all(whole == parts for whole, parts in printed), f"printed: {printed}")
    if not _is_clean(ran):
        return
    before, after = ran.before, ran.after
    more = len(after.succeeded) - len(before.succeeded)
    holds(report.succeeded == more, f"{report.succeeded} succeeded, {more} new lines")
    # A row that stood in both was mended by a run that did not live to take its failure out.
    old = _rows_of(before.failed).keys() - _rows_of(before.succeeded).keys()
    more = len(after.failed) - len(old - {result.row.number for result in ran.facts.taken})
    holds(report.failed == more, f"{report.failed} failed, {more} new lines")
    if report.is_complete and ran.run.limit is None and not ran.run.retry_failed:
        whole = report.offered + report.skipped
        lines = len(after.succeeded) + len(after.failed)
        holds(whole == lines, f"{whole} rows are done, {lines} lines stand there")


def _is_complete(script: Script, ran: Ran, job: Job) -> None:
    """Nothing is left to do: each row stands once."""
    holds(ran.report is not None and ran.report.is_complete, f"not complete: {ran.report}")
    count, after = len(script.rows), ran.after
    lines = len(after.succeeded) + len(after.failed)
    holds(lines == count, f"{lines} lines for {count} rows")
    rows = job.rows
    assert job.output is not None
    verdict = verify(job.output, list(rows.items) if hasattr(rows, "items") else rows)
    holds(verdict.is_whole and not verdict.strange, str(verdict))
    if job.output.ordered:
        order = [line["row"] for line in after.succeeded]
        holds(order == sorted(order), "not in the order of the input")
