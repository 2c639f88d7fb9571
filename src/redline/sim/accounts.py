"""The limits of each key, since providers count the requests of each account separately."""

from __future__ import annotations

import math
from collections import OrderedDict

from redline.limits.rule import Rate
from redline.sim.admission import Admission, Rates

# Beyond this number, the least recently used account is forgotten with its counts.
_MOST_ACCOUNTS = 10_000


class Account:
    """The counters of one key. parked_until_s: its requests are refused until then; monotonic."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.parked_until_s = -math.inf

    def park(self, until_s: float) -> None:
        """Refuses the account's requests until `until_s`, monotonic."""
        self.parked_until_s = until_s


class Accounts:
    """The accounts of a provider, one per key, all with the same limits.

    rates: the limits by kind; the kinds are those of redline.sim.admission.KINDS.
    """

    def __init__(self, rates: Rates, algorithm: str) -> None:
        self._algorithm = algorithm
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._model = Admission(rates, algorithm)

    @property
    def rates(self) -> dict[str, list[Rate]]:
        """The limits by kind, with every kind present."""
        return self._model.rates

    @property
    def has_limits(self) -> bool:
        """Whether there is a limit that a request may exceed."""
        return self._model.has_limits

    def of(self, key: str) -> Account:
        """Returns the account of a key as in the `Authorization` header; empty for no key."""
        account = self._accounts.get(key)
        if account is None:
            account = Account(Admission(self.rates, self._algorithm))
            self._accounts[key] = account
            if len(self._accounts) > _MOST_ACCOUNTS:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(key)
        return account

    def change(self, rates: Rates, now_s: float) -> None:
        """Replaces the limits of the kinds in `rates` for every account; see `Admission.change`."""
        self._model.change(rates, now_s)
        for account in self._accounts.values():
            account.admission.change(rates, now_s)
