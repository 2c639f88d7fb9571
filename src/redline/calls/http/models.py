"""Replaces a request's model name with the endpoint's name for the same model."""

from __future__ import annotations

from collections.abc import Mapping

from redline.waist import Request


def renamed(request: Request, models: Mapping[str, str]) -> Request:
    """Returns the request with the endpoint's name for its model; unchanged if there is none.

    models: maps requested model names to the endpoint's names.
    """
    asked = request.model
    if asked is not None and models.get(asked, asked) != asked:
        return request.with_fields(model=models[asked])
    return request
