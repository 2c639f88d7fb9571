"""Bounds the bytes of request bodies that a front holds in memory, in total and per tenant."""

from __future__ import annotations

from redline.serve.http.refusals import Refusal, busy, come_back


class HeldBytes:
    """Counts held bytes: at most `most` in total, and per tenant at most as many as are left free.

    Therefore a single tenant may hold half of `most`, and each of n tenants `most / (n + 1)`, so
    there is always room for one more tenant. This is the dynamic threshold of Choudhury and Hahne
    (1998), which shares a buffer among an unknown number of users. If a tenant holds only one body,
    only `most` bounds that body. has_tenants: False if all bodies belong to one tenant, which may
    then hold `most` bytes.
    """

    def __init__(self, most: int, *, has_tenants: bool) -> None:
        self._most = most
        self._has_tenants = has_tenants
        self._all = 0
        self._of: dict[str, int] = {}

    def take(self, tenant: str, more: int, held: int = 0) -> None:
        """Counts `more` bytes of a body whose first `held` bytes are counted already.

        Raises Refusal, and counts nothing, if they exceed the bound.
        """
        free = self._most - self._all - more
        if free < 0:
            raise busy("The requests in flight have reached the total size allowed.", "overloaded")
        before = self._of.get(tenant, 0)
        if self._has_tenants and before > held and before + more > free:
            raise Refusal(
                f"The requests of tenant {tenant} in flight have reached the total size allowed "
                "for a tenant.",
                status=429,
                code="too_many_bytes",
                headers=come_back(None),
            )
        self._all += more
        self._of[tenant] = before + more

    def release(self, tenant: str, size: int) -> None:
        """Releases `size` bytes of a tenant."""
        self._all -= size
        left = self._of.get(tenant, 0) - size
        if left > 0:
            self._of[tenant] = left
        else:
            self._of.pop(tenant, None)
