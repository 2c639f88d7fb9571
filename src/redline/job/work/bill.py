"""Computes the cost of a run, from the records of its budget or from the usage in replies."""

from __future__ import annotations

import msgspec

from redline.apis import read_usage
from redline.calls.cost import BATCH_DIVISOR, DOLLAR, Allowance, Spending, dollars_text
from redline.job.settings import Job
from redline.waist import Reply


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The spending so far, and the allowance; an amount is None if it is unknown.

    picodollars: with a budget in dollars, the amount that counts against it, from all runs with a
    budget; otherwise the cost of this run's replies. tokens: with a budget in tokens, the number
    that counts against it, from all these runs; otherwise None. here: picodollars of this run
    alone.
    """

    allowance: Allowance
    picodollars: int | None = None
    tokens: int | None = None
    here: int | None = None

    @property
    def is_of_all_runs(self) -> bool:
        """Whether the amounts include earlier runs; False if picodollars are only this run's."""
        return self.picodollars is None or self.allowance.picodollars is not None

    @property
    def usd(self) -> float | None:
        return None if self.picodollars is None else self.picodollars / DOLLAR

    def expected(self, rows_done: int, rows_left: int | None) -> int | None:
        """Returns the picodollars expected at the end, from the mean cost of this run's rows.

        rows_done: rows that this run has done. Returns None if it is 0, or if the cost or a number
        is unknown.
        """
        if self.picodollars is None or self.here is None or rows_left is None or not rows_done:
            return None
        return self.picodollars + self.here * rows_left // rows_done

    @property
    def text(self) -> str:
        """The amounts: `$0.42 of $5.00` or `$0.42`, `1,234 of 2,000 tokens`, both, or ""."""
        parts = []
        if self.picodollars is not None:
            parts.append(dollars_text(self.picodollars) + _of(self.allowance.picodollars))
        if self.tokens is not None:
            parts.append(f"{self.tokens:,} of {self.allowance.tokens or 0:,} tokens")
        return ", ".join(parts)


class Bill:
    """Adds up the cost of one run.

    spending: the spending of the budget; None without one. reads_replies: whether the cost is
    computed from replies, so that each reply must be passed to `add`.
    """

    def __init__(self, job: Job, spending: Spending | None) -> None:
        self._prices = job.price_table()
        self._model = job.prompting.model
        self._spending = spending
        self._allowance = job.allowance or Allowance()
        # The picodollars that earlier runs have spent.
        self._before = 0 if spending is None else spending.spent.picodollars
        self._by_replies = 0
        self._replies = 0
        # False once a reply has no price or no usage, since the total cost is then unknown. Always
        # False for an embedded server, which is free, and for a user's function, which has no
        # tokens.
        self._is_known = job.call is None and job.embedded is None
        self.reads_replies = self._is_known and self._allowance.picodollars is None

    def add(
        self,
        reply: Reply,
        endpoint: str = "",
        model: str | None = None,
        *,
        is_batched: bool = False,
    ) -> bool:
        """Adds the cost of a reply; returns False once the run's cost is unknown.

        model: the requested model, by default the job's.
        """
        prices = self._prices
        price = prices.at(endpoint, reply.model) or prices.at(endpoint, model or self._model)
        usage = read_usage(reply.usage, has_output=False)
        if price is None or usage is None:
            self._is_known = False
            return False
        self._replies += 1
        cost = price.of(usage)
        self._by_replies += -(-cost // BATCH_DIVISOR) if is_batched else cost
        return self._is_known

    def read(self) -> Spent:
        """Returns the current spending."""
        allowance, spending = self._allowance, self._spending
        picodollars = here = tokens = None
        if spending is not None and allowance.tokens is not None:
            tokens = spending.spent.tokens
        if spending is not None and allowance.picodollars is not None:
            picodollars = spending.spent.picodollars
            here = picodollars - self._before
        elif self._is_known and self._replies:
            picodollars = here = self._by_replies
        return Spent(allowance=allowance, picodollars=picodollars, tokens=tokens, here=here)


def _of(picodollars: int | None) -> str:
    return "" if picodollars is None else f" of {dollars_text(picodollars)}"
