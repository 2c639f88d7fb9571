"""Lines that are changed, each of which must break the law in some script."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from faults.parts import assemble
from faults.play import BrokenLaw, play
from redline.calls import http, retry
from redline.run import execute, feed, journal, results_file, runner


@dataclass(frozen=True)
class Mutation:
    """says: parts of what may then be found first. is_rare: it takes some hundred scripts."""

    name: str
    module: ModuleType
    line: str
    replacement: str
    says: tuple[str, ...]
    is_rare: bool = False

    def is_named_by(self, broken: BrokenLaw) -> bool:
        """The law is broken by this, and by nothing else that came with it."""
        return any(part in str(broken) for part in self.says)


_CONCLUDES = "if call.deadline_s == due_s or not self._is_cut_short(outcome, due_s):"
_SYNCS = "await loop.run_in_executor(self._disk, self._sync)"
_ACKNOWLEDGES = "self._acknowledge(group.results)"

MUTATIONS = [
    Mutation(
        "an outcome is lost where an answer cannot be read",
        runner,
        _CONCLUDES,
        'if outcome.error is None or outcome.error.kind != "bad_reply":',
        ("is lost",),
    ),
    Mutation(
        "rows are acknowledged twice",
        journal,
        _ACKNOWLEDGES,
        f"{_ACKNOWLEDGES}; {_ACKNOWLEDGES}",
        ("acknowledged twice",),
    ),
    Mutation(
        "a cancelled call keeps its slot",
        http,
        "self.slots.release()",
        "self.slots.release() if outcome is not None or exchange.sent_s is not None else None",
        ("slots",),
    ),
    Mutation(
        "a finished row is asked again on resume",
        execute,
        "run.feed.identifier = run.identifier(journal)",
        "pass",
        ("succeeded twice",),
    ),
    Mutation(
        "one attempt more than allowed",
        retry,
        "return history.blamed > most",
        "return history.blamed > most + 1",
        ("failed", "without retries"),
    ),
    Mutation(
        "a row is tried again after its deadline",
        retry,
        "if self._clock.now_s() + wait_s >= call.deadline_s:",
        "if False:",
        ("deadline",),
    ),
    Mutation(
        "a grant that is not used is kept",
        http,
        "exchange.grant.release()",
        "pass",
        ("still in use",),
    ),
    Mutation(
        "what an answer used is not settled",
        http,
        "self._steering.settle(exchange.grant, Cost(*used))",
        "pass",
        ("are booked for",),
    ),
    Mutation(
        "a Retry-After is not heeded",
        http,
        "is_news = self.limiter.park(now_s + error.retry_after_s)",
        "is_news = False",
        ("although told",),
    ),
    Mutation(
        "a torn line is kept",
        results_file,
        "has_torn_tail = self._size < os.fstat(self._fd).st_size",
        "has_torn_tail = False; self._size = os.fstat(self._fd).st_size",
        ("damaged lines", "half a line"),
        is_rare=True,
    ),
    Mutation(
        "rows are acknowledged before they are synced",
        journal,
        _SYNCS,
        f"{_ACKNOWLEDGES}; {_SYNCS}; group.results = []",
        ("acknowledged and lost", "in its file, not"),
        is_rare=True,
    ),
    Mutation(
        "a slot is used again before its line is written",
        execute,
        "run.tally.on_send = journal.flush",
        "pass",
        ("a death costs",),
        is_rare=True,
    ),
    Mutation(
        "workers that wait for rows are forgotten when the run ends",
        feed,
        "self._wake_some(len(self._waiting))",
        "pass",
        ("virtual time",),
        is_rare=True,
    ),
    Mutation(
        "an attempt begins after Ctrl-C",
        runner,
        "call.deadline_s = NO_MORE_S",
        "pass",
        ("asked although the run was to end",),
        is_rare=True,
    ),
]


def caught_by(mutation: Mutation, seeds: Iterable[int]) -> BrokenLaw | None:
    """How the first of these scripts that notices the mutation breaks the law; None for none."""
    mutated = assemble({mutation.module: (mutation.line, mutation.replacement)})
    for seed in seeds:
        try:
            play(seed, mutated)
        except BrokenLaw as error:
            return error
    return None
