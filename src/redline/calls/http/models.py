"""Names of models: a request's own, and the endpoint's."""

from __future__ import annotations

from collections.abc import Mapping

from redline.waist import Request


def renamed(request: Request, models: Mapping[str, str]) -> Request:
    """Returns the request with the endpoint's own name for its model; unchanged if there is none.

    models: the endpoint's names by the requested ones.
    """
    asked = request.model
    if asked is not None and models.get(asked, asked) != asked:
        return request.with_fields(model=models[asked])
    return request
