"""Pages of HTML made from templates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from redline.process import printable

# A space between a number and its unit.
_IN_QUANTITY = re.compile(r"(?<=\d) (?=(?:%|ms|s|m|h|d|min)(?!\w))")


def unbroken(text: str) -> str:
    """Returns the text so that no line ends between a number and its unit."""
    return _IN_QUANTITY.sub("\N{NO-BREAK SPACE}", text)


def rendered(template: Path, **values: Any) -> str:
    """Returns the page of a template, which escapes all values.

    Its filter `shown` cleans texts; `unbroken` keeps numbers and their units together.
    """
    # Imported here: only a page needs it.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = printable
    environment.filters["unbroken"] = unbroken
    return environment.from_string(template.read_text("utf-8")).render(**values)
