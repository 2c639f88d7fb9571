"""Which proxy an endpoint is reached through, and that it never reads the endpoint's key."""

from __future__ import annotations

import os
import re
import sys
from urllib.parse import urlsplit

from redline.calls.endpoint import Endpoint, is_proxy_url
from redline.errors import ConfigError

# Headers that say who asks. What is meant for the proxy itself is not among them.
_SECRET_HEADER = re.compile(r"(?!proxy-).*(authorization|key|token|secret|cookie).*", re.IGNORECASE)


def proxy_of(endpoint: Endpoint) -> str | None:
    """The proxy's URL: as the endpoint states, otherwise as the environment does; None for none.

    Raises ConfigError if it is not an http:// URL, or if the endpoint's key would be sent through
    it unencrypted: through a proxy, https is a tunnel, and plain http is not.
    """
    if endpoint.proxy is not None:
        proxy, origin = endpoint.proxy or None, ""
    else:
        proxy, origin = _env_proxy(endpoint.base_url)
    if proxy is None:
        return None
    if not is_proxy_url(proxy):
        # Its text may hold a password.
        raise ConfigError(
            f"{origin} is not the URL of an HTTP proxy",
            where="the environment",
            hint="write it like http://host:port, or unset it",
        )
    parts = urlsplit(endpoint.base_url)
    has_key = endpoint.api_key or any(map(_SECRET_HEADER.fullmatch, endpoint.headers))
    if has_key and parts.scheme == "http":
        raise ConfigError(
            f"the proxy would read the API key, because {endpoint.base_url} is not https",
            where=origin or "--proxy",
            hint=f"use https, or reach the endpoint without a proxy: NO_PROXY={parts.hostname}",
        )
    return proxy


def _env_proxy(base_url: str) -> tuple[str | None, str]:
    """The proxy that HTTP(S)_PROXY and NO_PROXY name for this URL, and what names it."""
    # macOS and Windows have settings for all programs as well.
    is_elsewhere = sys.platform in ("darwin", "win32")
    if not is_elsewhere and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None, ""
    # It brings http.client and email along, which few runs need.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(base_url)
    proxy = getproxies().get(parts.scheme)
    # With the port, because NO_PROXY may name one.
    host = parts.netloc.rpartition("@")[2]
    if proxy is None or proxy_bypass(host):
        return None, ""
    named = f"{parts.scheme}_proxy"
    # As getproxies reads them: the lower-case one wins.
    names = [named, *(name for name in os.environ if name.lower() == named)]
    origin = next((name for name in names if os.environ.get(name) == proxy), named.upper())
    return proxy, origin
