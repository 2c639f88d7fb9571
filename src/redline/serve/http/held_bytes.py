"""How many bytes of bodies a front holds in memory, and how many of them are one tenant's."""

from __future__ import annotations

from redline.serve.http.refusals import Refusal, busy, come_back


class HeldBytes:
    """At most `most` together, and of one tenant no more than is left free.

    So a tenant alone may hold half of it, and n tenants the nth part of n + 1 each: there is always
    room for one more. This is the dynamic threshold of Choudhury and Hahne (1998), which shares a
    buffer without knowing how many will use it. A tenant's only body is bounded by `most` alone.
    has_tenants: False if all bodies are one tenant's, which then may hold all of it.
    """

    def __init__(self, most: int, *, has_tenants: bool) -> None:
        self._most = most
        self._has_tenants = has_tenants
        self._all = 0
        self._of: dict[str, int] = {}

    def take(self, tenant: str, more: int, held: int = 0) -> None:
        """Counts `more` bytes of a body, of which `held` are counted already. Raises Refusal."""
        free = self._most - self._all - more
        if free < 0:
            raise busy("The requests in flight are as large as is allowed.", "overloaded")
        before = self._of.get(tenant, 0)
        if self._has_tenants and before > held and before + more > free:
            what = f"The requests of tenant {tenant} in flight are as large as is allowed."
            headers = come_back(None)
            raise Refusal(what, status=429, code="too_many_bytes", headers=headers)
        self._all += more
        self._of[tenant] = before + more

    def release(self, tenant: str, size: int) -> None:
        """Releases these bytes."""
        self._all -= size
        left = self._of.get(tenant, 0) - size
        if left > 0:
            self._of[tenant] = left
        else:
            self._of.pop(tenant, None)
