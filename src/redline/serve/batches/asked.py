"""Makes the record of a new batch from the body of POST /v1/batches."""

from __future__ import annotations

import msgspec

from redline.apis import BatchObject, BatchRequest, counts_object
from redline.clock import Clock
from redline.serve.batches.records import BatchRecord
from redline.serve.batches.settings import BatchSettings
from redline.serve.batches.shelf import new_id
from redline.serve.batches.upload import kept_for
from redline.serve.http import Refusal, malformed

_MOST_PAIRS, _MOST_KEY, _MOST_VALUE = 16, 64, 512
_DECODER = msgspec.json.Decoder(BatchRequest)


def read_batch(raw: bytes, tenant: str, settings: BatchSettings, clock: Clock) -> BatchRecord:
    """Makes the record of a new batch from the body `raw`. Raises Refusal if it is not valid."""
    try:
        asked = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None
    if asked.endpoint not in settings.endpoints:
        known = ", ".join(settings.endpoints)
        what = f"The endpoint must be one of {known}, not '{asked.endpoint[:80]}'."
        raise Refusal(what, param="endpoint")
    window_s = settings.window_s(asked.completion_window)
    if window_s is None:
        most = f"{settings.most_window_s / 3600:g}h"
        what = f"The completion window must be a time such as 24h or 30m, at most {most}."
        raise Refusal(what, param="completion_window")
    metadata = asked.metadata or {}
    if len(metadata) > _MOST_PAIRS:
        raise Refusal(f"The metadata has more than {_MOST_PAIRS} pairs.", param="metadata")
    for key, value in metadata.items():
        if len(key) > _MOST_KEY or len(value) > _MOST_VALUE:
            what = f"Metadata keys have at most {_MOST_KEY} characters, values {_MOST_VALUE}."
            raise Refusal(what, param="metadata")
    output_s = kept_for(asked.output_expires_after, settings.kept_s, "output_expires_after")
    now_s = int(clock.wall_s())
    return BatchRecord(
        tenant=tenant,
        output_s=output_s,
        shown=BatchObject(
            id=new_id("batch_"),
            endpoint=asked.endpoint,
            input_file_id=asked.input_file_id,
            completion_window=asked.completion_window,
            created_at=now_s,
            expires_at=now_s + int(window_s),
            request_counts=counts_object(0),
            metadata=asked.metadata,
        ),
    )
