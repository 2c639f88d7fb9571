"""What a server says about waiting, read from its headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

# A longer silence than a day is taken for a mistake in the header.
_LONGEST_S = 86_400.0


def retry_after_s(headers: Mapping[str, str], wall_s: float) -> float | None:
    """Seconds to wait by `retry-after-ms` or `Retry-After` (RFC 9110, 10.2.3); None where absent.

    headers: looked up in lower case. Retry-After is a number of seconds, fractions allowed, or an
    HTTP date, compared with wall_s. 0..86,400; anything else reads as absent.
    """
    wait_s = _number(headers.get("retry-after-ms"), 1e-3)
    if wait_s is None:
        text = headers.get("retry-after")
        wait_s = _number(text, 1.0)
        if wait_s is None and text:
            wait_s = _until(text, wall_s)
    return wait_s if wait_s is not None and wait_s <= _LONGEST_S else None


def _number(text: str | None, unit_s: float) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value * unit_s if value is not None and math.isfinite(value) and value >= 0 else None


def _until(text: str, wall_s: float) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        # The old asctime form names no zone; an HTTP date is always UTC (RFC 9110, 5.6.7).
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - wall_s)
