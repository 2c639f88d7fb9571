"""Defines POST /v1/embeddings: inputs in, a vector for each input out.

https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

from typing import Any

import msgspec

from redline.apis.api import Api, Envelope
from redline.apis.choices import in_order
from redline.apis.error_inside import judge_part
from redline.apis.request_parts import Count, Inputs
from redline.waist import Reply


class Request(msgspec.Struct):
    """The body of a request."""

    model: str
    input: Inputs
    dimensions: Count | None = None
    encoding_format: str | None = None


class _Vector(msgspec.Struct):
    embedding: Any
    index: Any = None


class _Reply(Envelope, kw_only=True):
    data: list[_Vector]


_REPLY = msgspec.json.Decoder(_Reply)


def inputs(body: dict[str, Any]) -> int | None:
    """Returns the number of requested vectors; None if the body has no `input`."""
    value = body.get("input")
    if isinstance(value, list):
        # A list of numbers is one input, given as token ids.
        return len(value) if value and not isinstance(value[0], int | float) else 1
    return None if value is None else 1


def read(body: bytes, asked: dict[str, Any] | None) -> Reply:
    """Reads a body whose output is a vector, or a list of several vectors; see `Api.read`."""
    reply = _REPLY.decode(body)
    if not reply.data:
        raise msgspec.ValidationError("`data` is empty")
    if reply.error:
        raise judge_part("the answer broke off", reply.error)
    found = in_order(reply.data, None if asked is None else inputs(asked), "embedding")
    vectors = [item.embedding for item in found]
    if not all(vectors):
        raise msgspec.ValidationError(
            f"the embedding at index {list(map(bool, vectors)).index(False)} is empty"
        )
    return Reply(
        output=vectors[0] if len(vectors) == 1 else vectors, usage=reply.usage, model=reply.model
    )


API = Api(path="/v1/embeddings", prompt="input", texts=("input",), has_output=False, read=read)


def whole(vectors: list[Any], model: str, input_tokens: int) -> dict[str, Any]:
    """Returns the answer with these vectors, each a list of numbers or 32-bit floats in base64."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": input_tokens, "total_tokens": input_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
