"""Calculates the cost of an output's answers from their usage and the known prices."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redline.apis import Usage, read_usage
from redline.calls.cost import BATCH_DIVISOR, Price, Prices
from redline.job.inspect.lines import Line
from redline.job.inspect.names import count_name

# The endpoint names of servers inside the run's process (see `job.settings.embedded`), which cost
# nothing: one name, and the beginning of the others.
_SIM, _ENGINE = "sim", "engine:"


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """The prices from which costs are calculated.

    own: the user's prices, by model. models: for each endpoint, its own names for models, by
    requested name. tariffs: for each endpoint with prices of its own, these prices by model.
    """

    own: Mapping[str, Price] = {}
    models: Mapping[str, Mapping[str, str]] = {}
    tariffs: Mapping[str, Mapping[str, Price]] = {}


class Cost:
    """Adds up the cost of an output's answers.

    asked_model: the model that the job requests. judge: the model that judges the answers if it is
    a different one, otherwise empty. endpoint: that of answers whose lines name none, as in the
    batch format; empty if unknown. is_free: whether the answers cost nothing.

    picodollars: the total cost of the `priced` answers. unpriced: the number of answers without a
    known price, by the model whose price is unknown: the answer's own or the judge. unstated: the
    number of answers whose usage does not state their tokens or the judge's. Answers from the cache
    and from servers inside the run's process cost nothing, and are left out of these figures.
    """

    def __init__(
        self,
        tariff: Tariff,
        asked_model: str | None,
        *,
        judge: str,
        endpoint: str,
        is_free: bool,
    ) -> None:
        self.picodollars = self.priced = self.unstated = 0
        self.unpriced: dict[str, int] = {}
        self._asked_model, self._judge = asked_model, judge
        self._endpoint, self._is_free = endpoint, is_free
        self._prices = Prices(tariff.own)
        # An endpoint's own names or prices do not affect the cost of answers of other endpoints.
        models = {name: tariff.models.get(name, {}) for name in {*tariff.models, *tariff.tariffs}}
        self._own_prices = dict.fromkeys(models, Prices(tariff.own, models, tariff.tariffs))

    def add(self, line: Line) -> None:
        """Adds the cost of an answer."""
        endpoint = line.endpoint or self._endpoint
        if self._is_free or line.cached or endpoint == _SIM or endpoint.startswith(_ENGINE):
            return
        prices = self._own_prices.get(endpoint, self._prices)
        price = prices.at(endpoint, line.model) or prices.at(endpoint, self._asked_model)
        usage = read_usage(line.usage, has_output=False)
        judged: Usage | None = Usage()
        judge_price = price
        if self._judge and line.judge_usage != {}:
            judged = read_usage(line.judge_usage, has_output=False)
            judge_price = prices.at(endpoint, self._judge)
        if price is None:
            count_name(self.unpriced, line.model or self._asked_model or "an unnamed model")
        elif judge_price is None:
            count_name(self.unpriced, self._judge)
        elif usage is None or judged is None:
            self.unstated += 1
        else:
            # The usage in the line is the sum of the answer's and the judge's.
            own = Usage(*(max(0, one - other) for one, other in zip(usage, judged, strict=True)))
            dearest = price.of(own) + judge_price.of(judged)
            self.picodollars += -(-dearest // BATCH_DIVISOR) if line.batched else dearest
            self.priced += 1
