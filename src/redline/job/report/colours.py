"""Defines the colours of reports, light and dark. Text repeats everything that a colour shows."""

from __future__ import annotations

from redline.observe import Cause

# Each cause with its light and its dark colour: red for an endpoint that is down, calm colours for
# bounds that the user may have chosen.
OF_CAUSES: dict[Cause, tuple[str, str]] = {
    Cause.INPUT: ("#b57200", "#d99a26"),
    Cause.CLIENT: ("#138a63", "#2bb587"),
    Cause.LIMIT: ("#2a78d6", "#4b94ea"),
    Cause.CONCURRENCY: ("#6a4cc0", "#9a82e6"),
    Cause.ENDPOINT: ("#d9602a", "#ee8350"),
    Cause.DOWN: ("#c62f2f", "#ea5f5f"),
    Cause.WRITER: ("#b0478a", "#d774b2"),
    Cause.NOTHING: ("#a9a79f", "#5f5e59"),
    Cause.UNDETERMINED: ("#77766f", "#93928b"),
}
# The colours of a chart's lines, used in this order.
LINES = (
    ("#2a78d6", "#4b94ea"),
    ("#d9602a", "#ee8350"),
    ("#138a63", "#2bb587"),
    ("#6a4cc0", "#9a82e6"),
    ("#b57200", "#d99a26"),
    ("#b0478a", "#d774b2"),
    ("#77766f", "#93928b"),
)
BACKGROUND = ("#ffffff", "#1b1b1a")
TEXT = ("#1a1a19", "#efeeea")
QUIET = ("#5d5c57", "#b3b1aa")
RULE = ("#e2e1dc", "#383835")
