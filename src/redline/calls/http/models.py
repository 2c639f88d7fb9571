"""Names of models: what a request asks for, and what an endpoint calls it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redline.waist import Request


class _Named(msgspec.Struct):
    model: str = ""


_NAMED = msgspec.json.Decoder(_Named)


def renamed(request: Request, models: Mapping[str, str]) -> Request:
    """The request with its model as the endpoint calls it; the same one if that has no other name.

    models: the endpoint's names by those that are asked for.
    """
    if request.raw is not None:
        try:
            asked: object = _NAMED.decode(request.raw).model
        except (ValueError, RecursionError):
            return request
    else:
        body = request.body
        asked = body.get("model") if isinstance(body, dict) else None
    if isinstance(asked, str) and models.get(asked, asked) != asked:
        return request.with_fields(model=models[asked])
    return request
