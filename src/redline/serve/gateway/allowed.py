"""Decides which calls are allowed: from which web pages, to which models, and in which class.

The rules for models and priority fields also apply to lines of a batch.
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.calls.tokens import NOT_JSON, BodyFacts
from redline.httpserver import Exchange, header_lines
from redline.serve.gateway.lineup import Lineup, Target
from redline.serve.http import (
    Refusal,
    check_fields,
    no_model,
    not_json,
    other_choice,
    shortened,
)
from redline.serve.keys import Tenant

# The most characters in a model's name. Tables keep names, and a body-sized name would fill memory.
_LONGEST_MODEL = 1000
# OpenAI's values for the urgency of a call.
_TIERS = {"flex": "low", "priority": "high", "fast": "high", "ultrafast": "high"}
# Header lines that let a web page read the response, and send JSON and a key, but no cookies
# (CORS). They also answer a preflight request.
FOR_PAGES = header_lines(
    {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": "GET, POST, DELETE",
        # `*` does not include Authorization.
        "access-control-allow-headers": "*, Authorization",
        "access-control-expose-headers": "*",
        "access-control-max-age": "600",
    }
)


def target_of(lineup: Lineup, tenant: Tenant, facts: BodyFacts, raw: bytes) -> Target:
    """Returns the target of a call with the body `raw`.

    Raises Refusal if the body is invalid, if no endpoint has its model, if the tenant may not use
    the model, or if the tenant has limits on models or money and the body names no model, or may
    name several.
    """
    if facts is NOT_JSON:
        raise not_json(raw)
    check_fields(raw)
    model, settings = facts.model, tenant.settings
    # The tenant may use only some models, or its spending per day is limited.
    is_restricted = settings.models is not None or settings.picodollars_per_day is not None
    if model is not None and len(model) > _LONGEST_MODEL:
        raise missing(lineup, tenant, model)
    target = lineup.target(model)
    if model is None and (target is None or is_restricted):
        raise Refusal("The body of the request does not name a model.", param="model")
    if target is None or not tenant.may_use(model or ""):
        raise missing(lineup, tenant, model or "")
    if is_restricted and (name := other_choice(raw)):
        raise Refusal(
            f"The body of the request may name several models in `{name}`, which the limits of "
            f"tenant {tenant.name} do not allow.",
            param=name,
        )
    return target


def class_of(tenant: Tenant, asked: str | None, facts: BodyFacts) -> str:
    """Returns the class of a call: the one that it requests, if its tenant may use that class.

    asked: the header `x-redline-class`; if it is None, the service tier in the body counts. A call
    that requests no class, or one that its tenant may not use, gets the tenant's default class.
    """
    settings = tenant.settings
    if asked is None and facts.service_tier is not None:
        asked = _TIERS.get(facts.service_tier)
    return asked if asked in settings.classes else settings.default_class


def removed_for(tenant: Tenant, facts: BodyFacts) -> dict[str, Any]:
    """Returns the body fields to remove: those that would make an endpoint prefer the call.

    The result maps each to UNSET. It is empty for a tenant that may use the class `high`.
    """
    if "high" in tenant.settings.classes:
        return {}
    removed = dict[str, Any]()
    if facts.priority is not None:
        removed["priority"] = msgspec.UNSET
    if _TIERS.get(facts.service_tier or "") == "high":
        removed["service_tier"] = msgspec.UNSET
    return removed


def missing(lineup: Lineup, tenant: Tenant, name: str) -> Refusal:
    """Returns the refusal for a model that does not exist or that the tenant may not use.

    It suggests the most similar model that the tenant may use.
    """
    return no_model(name, [one for one in lineup.names if tenant.may_use(one)])


def refuse_other_site(exchange: Exchange, *, serves_here_only: bool) -> None:
    """Raises Refusal for a request from a web page of another site.

    serves_here_only: the gateway listens only on a loopback address, so `Host` is checked as well.
    """
    origin, host = exchange.header(b"origin"), exchange.header(b"host")
    # Browsers send the page's site in Origin (RFC 6454). An Origin equal to the gateway's own site
    # proves nothing: a page may choose a name that resolves to this machine (DNS rebinding), and
    # its GET requests then have no Origin.
    if origin is not None and not may_ask(origin):
        raise _elsewhere(
            "Web pages of other sites may not use a gateway without keys: start it with `--keys`, "
            "or send the request without an Origin header."
        )
    if serves_here_only and host is not None and not _leads_here(host):
        raise _elsewhere(
            "A gateway that has no keys and listens only on this machine does not accept requests "
            f"for the host `{shortened(host)}`: start it with `--keys`, or send the header "
            "`Host: localhost`."
        )


def _elsewhere(what: str) -> Refusal:
    return Refusal(what, status=403, code="other_site")


def may_ask(origin: str) -> bool:
    """Whether this Origin may use a gateway without keys.

    It may if it is this machine, or if its scheme is not that of a web page.
    """
    try:
        site = urlsplit(origin)
        return site.scheme not in ("", "http", "https") or is_here(site.hostname or "")
    except ValueError:
        return False


def _leads_here(host: str) -> bool:
    """Whether no web page can have chosen this Host: it is an address, or not a DNS name.

    A name without a dot, such as Docker's, belongs to the local network.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    return "." not in name or name.endswith(".localhost") or _address(name) is not None


def is_here(host: str) -> bool:
    """Whether this name or address is `localhost` or a loopback address."""
    found = _address(host)
    is_name = host == "localhost" or host.endswith(".localhost")
    return is_name if found is None else found.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
