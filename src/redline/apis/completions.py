"""Defines POST /v1/completions: prompts in, a text for each choice out.

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

from functools import partial
from typing import Any

from redline.apis.api import Api
from redline.apis.choices import Form, SampledRequest, read, write_choice
from redline.apis.request_parts import Inputs


class Request(SampledRequest, kw_only=True):
    """The body of a request, as far as the simulated provider reads it."""

    prompt: Inputs


API = Api(
    path="/v1/completions",
    texts=("prompt", "suffix"),
    as_json=("response_format",),
    output_limits=("max_tokens",),
    is_streamed=True,
    read=read,
)


def _text(text: str | None, tool_calls: Any) -> str:
    return text or ""


_choice = partial(write_choice, "text", _text)

FORM = Form(
    id_prefix="cmpl",
    whole="text_completion",
    event="text_completion",
    choice=_choice,
    piece=_choice,
)
