"""The endpoints to which a tenant's call may go, whether interactive or a line of a batch."""

from __future__ import annotations

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
