"""The checked parameters of POST /v1/batches."""

from __future__ import annotations

import re

import msgspec

from redline.apis import BatchRequest
from redline.serve.batches.settings import BatchSettings
from redline.serve.batches.upload import checked_expiry
from redline.serve.http import Refusal

_MOST_PAIRS, _MOST_KEY, _MOST_VALUE = 16, 64, 512
_DECODER = msgspec.json.Decoder(BatchRequest)
_FIELD = re.compile(r"`\$?\.?(\w+)`|`\$\.(\w+)")


class Asked(msgspec.Struct, frozen=True):
    """The parameters of a batch. output_s: how long its output files are kept."""

    request: BatchRequest
    window_s: float
    output_s: int


def read_batch(raw: bytes, settings: BatchSettings) -> Asked:
    """The checked parameters. Raises Refusal if they are not valid."""
    try:
        asked = _DECODER.decode(raw)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        param = (field[1] or field[2]) if field else None
        raise Refusal(f"The body of the request is not valid: {error}", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(f"The body of the request could not be read as JSON: {error}") from None
    if asked.endpoint not in settings.endpoints:
        known = ", ".join(settings.endpoints)
        what = f"The endpoint must be one of {known}, not '{asked.endpoint[:80]}'."
        raise Refusal(what, param="endpoint")
    window_s = settings.window_s(asked.completion_window)
    if window_s is None:
        most = f"{settings.most_window_s / 3600:g}h"
        what = f"The completion window is a time such as 24h or 30m, at most {most}."
        raise Refusal(what, param="completion_window")
    _check_metadata(asked.metadata or {})
    output_s = int(settings.kept_s)
    if asked.output_expires_after is not None:
        most_s = max(settings.kept_s, 3600)
        output_s = checked_expiry(asked.output_expires_after, most_s, "output_expires_after")
    return Asked(asked, window_s, output_s)


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > _MOST_PAIRS:
        raise Refusal(f"The metadata has more than {_MOST_PAIRS} pairs.", param="metadata")
    for key, value in metadata.items():
        if len(key) > _MOST_KEY or len(value) > _MOST_VALUE:
            what = f"Keys have at most {_MOST_KEY} characters, values {_MOST_VALUE}."
            raise Refusal(what, param="metadata")
