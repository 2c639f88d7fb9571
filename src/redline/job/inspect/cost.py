"""The cost of an output's answers, by their usage and the known prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from redline.apis import Usage
from redline.calls.cost import BATCH_DIVISOR, Price, Prices
from redline.job.inspect.calls import Calls

# The names of servers inside a run, see `job.settings.embedded`; they cost nothing.
_SIM, _ENGINE = "sim", "engine:"


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """Prices by model, and by endpoint if one has other prices or other names for models."""

    own: Mapping[str, Price] = {}
    models: Mapping[str, Mapping[str, str]] = {}
    tariffs: Mapping[str, Mapping[str, Price]] = {}

    def at(self, endpoint: str) -> Prices:
        """Returns the prices of answers of this endpoint."""
        if endpoint not in self.models and endpoint not in self.tariffs:
            return Prices(self.own)
        models = {endpoint: self.models.get(endpoint, {})}
        return Prices(self.own, models, {endpoint: self.tariffs.get(endpoint, {})})


class Cost(msgspec.Struct, kw_only=True):
    """The cost of an output's answers.

    picodollars: of `priced` answers. unpriced: answers by their model, which has no price.
    unstated: answers whose usage does not say how many tokens they took. Answers from the cache,
    and of servers inside the run, cost nothing and are in none of these.
    """

    picodollars: int = 0
    priced: int = 0
    unpriced: dict[str, int] = {}
    unstated: int = 0


class Billing(msgspec.Struct, frozen=True):
    """The billing of one output's answers.

    asked_model: the one that the job has named. is_free: no answer costs anything.
    """

    tariff: Tariff
    asked_model: str | None
    is_free: bool

    def cost(self, calls: Iterable[Calls]) -> Cost:
        """Returns the cost of these answers."""
        cost = Cost()
        for each in calls:
            is_embedded = each.endpoint == _SIM or each.endpoint.startswith(_ENGINE)
            if not (self.is_free or each.is_cached or is_embedded):
                self._add(cost, each)
        return cost

    def _add(self, cost: Cost, calls: Calls) -> None:
        prices, model = self.tariff.at(calls.endpoint), calls.model or self.asked_model
        price = prices.at(calls.endpoint, calls.model)
        price = price or prices.at(calls.endpoint, self.asked_model)
        if price is None:
            name = model or "an unnamed model"
            cost.unpriced[name] = cost.unpriced.get(name, 0) + calls.answers
            return
        dearest = price.of(Usage(*calls.billed))
        cost.picodollars += -(-dearest // BATCH_DIVISOR) if calls.is_batched else dearest
        cost.priced += calls.answers - calls.unbilled
        cost.unstated += calls.unbilled
