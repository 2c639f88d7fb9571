"""Pages of other sites, which a browser on this machine lets send requests to a gateway."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from redline.serve.http import Refusal


def refuse_other_site(origin: str | None) -> None:
    """Raises Refusal for a request by a page that does not come from this machine.

    origin: the header in which browsers name the page's site (RFC 6454); None without one, as from
    all other clients. That it is the gateway's own site proves nothing: a name of the page's choice
    may lead here. Applications and extensions, whose sites have schemes of their own, may ask.
    """
    if origin is None:
        return
    try:
        site = urlsplit(origin)
        is_local = site.scheme not in ("", "http", "https") or _is_here(site.hostname or "")
    except ValueError:
        is_local = False
    if not is_local:
        raise Refusal(
            "Web pages of other sites may not use a gateway without keys: give it keys with "
            "`redline keys add`, or send the request without the header Origin.",
            status=403,
            code="other_site",
        )


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
