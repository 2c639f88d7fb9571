"""Who may call: which web pages, and to which endpoints of a tenant.

The latter holds for interactive calls and for lines of a batch alike.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from redline.calls.tokens import NOT_JSON, BodyFacts
from redline.serve.gateway.lineup import Lineup, Target
from redline.serve.http import Refusal, names_one_model, no_model, not_json
from redline.serve.keys import Tenant

# Length of a model's name. Tables keep names, so a name as long as a body would use much memory.
_LONGEST_MODEL = 1000


def target_of(lineup: Lineup, tenant: Tenant, facts: BodyFacts, raw: bytes) -> Target:
    """The target of a call with the body `raw`. Raises Refusal if the tenant has none."""
    if facts is NOT_JSON:
        raise not_json(raw)
    model, settings = facts.model, tenant.settings
    # To some models, or by their prices.
    is_restricted = settings.models is not None or settings.picodollars_per_day is not None
    if model is not None and len(model) > _LONGEST_MODEL:
        raise missing(lineup, tenant, model)
    target = lineup.target(model)
    if model is None and (target is None or is_restricted):
        raise Refusal("The body of the request names no model.", param="model")
    if target is None or not tenant.may_use(model or ""):
        raise missing(lineup, tenant, model or "")
    if is_restricted and not names_one_model(raw):
        raise Refusal("The body of the request names several models.", param="model")
    return target


def missing(lineup: Lineup, tenant: Tenant, name: str) -> Refusal:
    """Refuses a model that the tenant may not use, with the most similar one that it may."""
    return no_model(name, [one for one in lineup.names if tenant.may_use(one)])


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
