"""Parts of redline made so that they break what they promise: each takes redline's own class."""

from __future__ import annotations

from typing import Any


def acknowledges_early(base: Any) -> Any:
    """A journal that acknowledges rows when it takes them."""

    class Early(base):  # type: ignore[misc]
        def __init__(self, output: Any, acknowledge: Any) -> None:
            super().__init__(output, lambda _: None)
            self._early = acknowledge

        def append(self, result: Any) -> None:
            super().append(result)
            self._early([result.in_brief()])

    return Early


def knows_nothing(base: Any) -> Any:
    """An identifier that is told of no row that has succeeded."""
    return lambda *_: base()


def keeps_torn_lines(base: Any) -> Any:
    """A file of results that writes behind half a line."""

    class Torn(base):  # type: ignore[misc]
        def __init__(self, path: Any, on_found: Any) -> None:
            old = path.read_bytes() if path.exists() else b""
            super().__init__(path, on_found)
            half, add = [old[old.rfind(b"\n") + 1 :]], self.add
            self.add = lambda line: add((half.pop() if half else b"") + line)

    return Torn
