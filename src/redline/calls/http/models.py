"""Names of models: what a request asks for, and what an endpoint calls it."""

from __future__ import annotations

from collections.abc import Mapping

from redline.waist import Request


def renamed(request: Request, models: Mapping[str, str]) -> Request:
    """The request with its model as the endpoint calls it; the same one if that has no other name.

    models: the endpoint's names by those that are asked for.
    """
    asked = request.model
    if asked is not None and models.get(asked, asked) != asked:
        return request.with_fields(model=models[asked])
    return request
