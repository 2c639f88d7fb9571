"""Text for a person, which must change neither the work nor the exit status."""

from __future__ import annotations

from typing import Any, TextIO, cast


class _Lasting:
    """A stream that loses what cannot be written: on a full disk, or when its terminal is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            # ValueError: it was closed.
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


def lasting(stream: TextIO) -> TextIO:
    """`stream`, whose errors are passed over."""
    return stream if isinstance(stream, _Lasting) else cast("TextIO", _Lasting(stream))
