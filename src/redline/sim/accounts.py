"""The limits of each key, since providers count the requests of each account separately."""

from __future__ import annotations

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
        # The least recently used one first.
        self._accounts: dict[str, Admission] = {}
        self.rates: dict[str, list[Rate]] = {what: list(rates.get(what, ())) for what in KINDS}
        self.has_limits = any(self.rates.values())

    def of(self, key: str) -> Admission:
        """Returns the account of a key as in the `Authorization` header; empty for no key."""
        account = self._accounts.pop(key, None) or Admission(self.rates, self._algorithm)
        self._accounts[key] = account
        if len(self._accounts) > _MOST_ACCOUNTS:
            del self._accounts[next(iter(self._accounts))]
        return account

    def change(self, rates: Rates, now_s: float) -> None:
        """Replaces the limits of the kinds in `rates` for every account; see `Admission.change`."""
        self.rates |= {what: list(found) for what, found in rates.items()}
        self.has_limits = any(self.rates.values())
        for account in self._accounts.values():
            account.change(rates, now_s)
