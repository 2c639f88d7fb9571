"""The data of the events in a stream's bytes."""

from __future__ import annotations

from redline.apis import EventParser


def completed(parser: EventParser, data: bytes) -> list[bytes]:
    """The data of each event that `data` completes, as ErrorData for errors."""
    return [found for _, found in parser.blocks(data) if found is not None]
