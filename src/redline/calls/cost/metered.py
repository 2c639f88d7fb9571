"""Keeps a backend within a budget: reserves each attempt's worst case, and settles it afterwards.

If a request sets no maximum of output tokens, its worst case is an estimate.

  an attempt ends with                          the amount spent is
  a reply with its usage                        the cost of the usage
  a reply without a usage                       the worst case, at its endpoint's price
  an HTTP error instead of an answer            nothing
  HTTP 504 or 524                               the worst case: the model may have continued
  anything else, after it was written           the worst case: it may have been billed
  anything else, before it was written          nothing

An attempt that does not fit in the rest of the budget waits, in order of arrival, until others are
settled. If no other is in flight, the budget counts as spent for all waiting and later attempts.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

import msgspec

from redline.apis import api_of, read_usage
from redline.calls.cost.prices import Price, Prices, how_to_price, unpriced
from redline.calls.cost.spending import NOTHING, Amount, Spending, dollars_text
from redline.calls.tokens import TokenEstimator, Worst, worst_of
from redline.clock import SYSTEM, Clock
from redline.errors import BadRow, BudgetSpent, CallError, Unpriced
from redline.process import counted
from redline.waist import Around, Backend, Call, Load, Outcome, Reply, Request, Sink, failed

_FREE = Price(input=0, cached_input=0, output=0)
# The gateway timed out, but the model behind it may have answered, which is billed.
_MAY_BE_BILLED = frozenset({504, 524})


class Account(Protocol):
    """Records the spending in a place that outlives the process."""

    def keep(self, committed: Amount) -> None:
        """Records the amount that is spent or reserved. Raises OSError."""


class _Attempt(msgspec.Struct):
    """One attempt. input_tokens, output_tokens: the most that it can use. price: its highest price.

    If the request has no maximum, output_tokens is an estimate. bound: the request's own bounds.
    writes: how many times its request was written.
    """

    input_tokens: int
    output_tokens: int
    bound: Worst
    price: Price
    writes: int = 0

    @property
    def worst(self) -> Amount:
        """Its highest possible cost."""
        return self.worst_at(self.price)

    def worst_at(self, price: Price) -> Amount:
        """Returns its highest possible cost at this price."""
        most = price.most(self.input_tokens, self.output_tokens, may_write=self.bound.may_write)
        return Amount(most, self.input_tokens + self.output_tokens)


class Metered(Around):
    """A backend that sends a call only if `spending` has room for it, and counts what it costs.

    account: updated before each write and after each settlement; None for no record.
    waiting: the number of calls that wait for other calls' reservations to be settled.
    """

    def __init__(
        self,
        backend: Backend,
        spending: Spending,
        prices: Prices,
        *,
        account: Account | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(backend)
        self.spending = spending
        self._account = account
        self._prices = prices
        self._clock = clock
        self._estimator = TokenEstimator()
        self.waiting = 0
        # The first waiting call holds this lock until it has its reservation.
        self._turn = asyncio.Lock()
        self._settled = asyncio.Event()
        self._open = 0
        # The part of the reserved amount that belongs to written requests.
        self._written = NOTHING
        # The most input tokens by which a usage has exceeded its bound: a server may add a prompt.
        self._hidden_tokens = 0
        self._is_spent = False
        # The part of the spent amount that is recorded in a place other than the account.
        self._elsewhere = NOTHING

    def load(self, now_s: float, request: Request | None = None) -> Load:
        load = super().load(now_s, request)
        if not self.waiting and not self._is_spent:
            return load
        return msgspec.structs.replace(
            load,
            waiting=load.waiting + self.waiting,
            room_s=max(load.room_s, math.ulp(0.0)),
            binds="the budget",
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        try:
            attempt = self._attempt(request)
            waited_since_s = await self._reserve(attempt.worst, call)
        except CallError as error:
            return failed(error)
        outcome: Outcome | None = None
        teaches = attempt.bound.output_tokens is None
        sending = self._estimator.begin(request) if teaches else None
        begun_s = self._clock.now_s()
        call.refused = 0
        call.on_write = lambda: self._write(attempt, call)
        try:
            outcome = await self._inner.send(request, call, sink)
        finally:
            call.on_write = None
            if sending is not None:
                reply = None if outcome is None else outcome.reply
                self._estimator.end(sending, reply, self._clock.now_s() - begun_s)
            self._settle(attempt, call, request, outcome)
        if waited_since_s is not None:
            outcome.was_queued(waited_since_s)
        return outcome

    def batched(self, request: Request) -> Amount:
        """Returns the most that the request can cost in a batch. Raises CallError if unknown.

        The result is an estimate if the request sets no maximum of output tokens.
        """
        return self._attempt(request).worst.batched

    def cost_batched(self, request: Request, reply: Reply | None) -> Amount:
        """Returns the cost of a request in a batch. reply: None for an error, which is free."""
        if reply is None:
            return NOTHING
        attempt = self._attempt(request)
        if attempt.bound.output_tokens is None:
            # Later batches reserve outputs that are as long as those of earlier batches.
            self._estimator.end(self._estimator.begin(request), reply, 1.0)
        return self._actual(attempt, request, Outcome(status="succeeded", reply=reply)).batched

    def reserve(self, worst: Amount) -> bool:
        """Reserves `worst` for a batch; False if it does not fit, or if calls wait for the budget.

        The caller must record the reservation, which `account` leaves out, and settle it.
        """
        return not self.waiting and not self._is_spent and self.spending.reserve(worst)

    def settle(self, reserved: Amount, actual: Amount) -> None:
        """Settles an amount from `reserve`. actual: the amount that was spent."""
        self._elsewhere = self._elsewhere.plus(actual)
        self.spending.settle(reserved, actual)

    def recall(self, spent: Amount, reserved: Amount) -> None:
        """Adds the amounts that earlier runs have recorded elsewhere as spent and as reserved."""
        self.spending.recall(spent, reserved)
        self._elsewhere = spent

    def _attempt(self, request: Request) -> _Attempt:
        """Returns an attempt with its worst case. Raises CallError if its worst case is unknown."""
        model = request.model
        price = self._prices.find(model)
        if price is None:
            if self.spending.allowance.picodollars is not None:
                raise _no_price(model)
            price = _FREE
        try:
            bound = worst_of(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRow(f"the request cannot be written as JSON: {error}") from error
        output_tokens = bound.output_tokens
        if output_tokens is None:
            output_tokens = self._estimator.most(request).output_tokens
        input_tokens = bound.input_tokens + self._hidden_tokens
        return _Attempt(input_tokens, output_tokens, bound, price)

    async def _reserve(self, worst: Amount, call: Call) -> float | None:
        """Reserves `worst`, waiting if needed; returns when the wait began, None without a wait.

        Raises BudgetSpent, or TimedOut at the row's deadline.
        """
        if not self.waiting and self._take(worst):
            return None
        since_s = self._clock.now_s()
        self.waiting += 1
        try:
            await call.in_time(self._take_in_turn(worst), self._clock)
        finally:
            self.waiting -= 1
        return since_s

    async def _take_in_turn(self, worst: Amount) -> None:
        """Reserves `worst` once it fits, after all earlier calls. Raises BudgetSpent."""
        async with self._turn:
            while not self._take(worst):
                if not self._open:
                    # A smaller row must not overtake a row that did not fit.
                    self._is_spent = True
                if self._is_spent:
                    raise self.spent(worst)
                self._settled.clear()
                await self._settled.wait()

    def _take(self, worst: Amount) -> bool:
        if self._is_spent or not self.spending.reserve(worst):
            return False
        self._open += 1
        return True

    def _close(self, reserved: Amount, actual: Amount) -> None:
        self._open -= 1
        self.spending.settle(reserved, actual)
        self._settled.set()

    def _write(self, attempt: _Attempt, call: Call) -> None:
        """Records a request that is about to be written. Raises BudgetSpent if that fails.

        A transport may write a request twice, if its first connection broke: both writes may be
        billed, so BudgetSpent is also raised if the second does not fit.
        """
        worst = attempt.worst
        if attempt.writes and call.refused:
            # The amount recorded for the refused request now counts for this one.
            call.refused -= 1
            return
        if attempt.writes and not self.spending.reserve(worst):
            raise self.spent(worst)
        self._written = self._written.plus(worst)
        try:
            self._keep()
        except OSError as error:
            self._written = self._written.minus(worst)
            if attempt.writes:
                self.spending.settle(worst, NOTHING)
            raise BudgetSpent(
                f"the budget cannot be enforced: spending cannot be recorded: {error.strerror}",
                hint="check the disk of the output, then run the same command again",
            ) from error
        attempt.writes += 1

    def _keep(self) -> None:
        if self._account is not None:
            own = self.spending.spent.minus(self._elsewhere)
            self._account.keep(own.plus(self._written))

    def _settle(
        self, attempt: _Attempt, call: Call, request: Request, outcome: Outcome | None
    ) -> None:
        """Settles an attempt that is over. outcome: None if it was cancelled."""
        worst = attempt.worst
        if not attempt.writes:
            self._close(worst, NOTHING)
            return
        for _ in range(attempt.writes - 1):
            # The responses to all writes but the last one were not read.
            self._written = self._written.minus(worst)
            self.spending.settle(worst, worst)
        self._written = self._written.minus(worst)
        # A refused last write is free: no other endpoint has answered since.
        actual = NOTHING if call.refused else self._actual(attempt, request, outcome)
        self._close(worst, actual)
        try:
            self._keep()
        except OSError:
            # The record then shows more than was spent. The next write fails too, and reports it.
            pass

    def _actual(self, attempt: _Attempt, request: Request, outcome: Outcome | None) -> Amount:
        """Returns the cost of a written attempt, according to the table at the top of this file."""
        if outcome is None:
            return attempt.worst
        error = outcome.error
        price = self._prices.at(outcome.endpoint, request.model) or attempt.price
        worst = attempt.worst_at(price)
        if error is not None and outcome.reply is None:
            return worst if may_be_billed(error) else NOTHING
        usage = None
        if outcome.reply is not None:
            has_output = api_of(request.url).has_output
            usage = read_usage(outcome.reply.usage, has_output=has_output)
        if usage is None:
            return worst
        hidden = usage.input_tokens - attempt.bound.input_tokens
        self._hidden_tokens = max(self._hidden_tokens, hidden)
        return Amount(price.of(usage), usage.tokens)

    def spent(self, worst: Amount) -> BudgetSpent:
        """Returns the error of a call that is not sent because it may cost `worst`."""
        spending = self.spending
        allowance, spent = spending.allowance, spending.spent
        costs, parts, flags = list[str](), list[str](), list[str]()
        if allowance.picodollars is not None:
            costs.append(dollars_text(worst.picodollars))
            most = dollars_text(allowance.picodollars)
            parts.append(f"{dollars_text(spent.picodollars)} of {most}")
            flags.append("--budget")
        if allowance.tokens is not None:
            costs.append(counted(worst.tokens, "token"))
            parts.append(f"{spent.tokens:,} of {counted(allowance.tokens, 'token')}")
            flags.append("--budget-tokens")
        return BudgetSpent(
            f"the budget does not allow the next call: it may cost {' and '.join(costs)}, with "
            f"{' and '.join(parts)} spent",
            hint=f"raise {' or '.join(flags)}, then run the same command again",
        )


def may_be_billed(error: Exception) -> bool:
    """Whether a request that was written and ended with this error may have been billed."""
    status = error.status if isinstance(error, CallError) else None
    return status is None or status < 300 or status in _MAY_BE_BILLED


def _no_price(model: object) -> Unpriced:
    if isinstance(model, str):
        return Unpriced(unpriced(model), hint=how_to_price(model))
    return Unpriced(
        "a budget in dollars needs a model for every row, and this row has none",
        hint="set one with --model",
    )
