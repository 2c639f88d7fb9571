"""Keeps limits for each key, because providers count the requests of each account separately."""

from __future__ import annotations

from collections import OrderedDict

from redline.limits.rule import Rate
from redline.sim.admission import KINDS, Admission, Rates

# Beyond this number, the least recently used account is forgotten with its counts.
_MOST_ACCOUNTS = 10_000


class Accounts:
    """The accounts of a provider, one per key, all with the same limits.

    rates: the limits by kind, with every kind of KINDS present. has_limits: whether there is a
    limit that a request may exceed.
    """

    def __init__(self, rates: Rates, algorithm: str) -> None:
        self._algorithm = algorithm
        self._accounts: OrderedDict[str, Admission] = OrderedDict()
        self.rates: dict[str, list[Rate]] = {what: list(rates.get(what, ())) for what in KINDS}
        self.has_limits = any(self.rates.values())

    def of(self, key: str) -> Admission:
        """Returns the account of a key: the value of the `Authorization` header, or ""."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Admission(self.rates, self._algorithm)
            if len(self._accounts) > _MOST_ACCOUNTS:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(key)
        return account

    def change(self, rates: Rates, now_s: float) -> None:
        """Replaces the limits of the kinds in `rates` for every account; see `Admission.change`."""
        self.rates |= {what: list(found) for what, found in rates.items()}
        self.has_limits = any(self.rates.values())
        for account in self._accounts.values():
            account.change(rates, now_s)
