"""Renders HTML pages from templates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from redline.process import printable

# How every page begins. The generator distinguishes redline's pages from others.
PAGE = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="generator" content="redline">\n'
)
# A space between a number and its unit.
_IN_QUANTITY = re.compile(r"(?<=\d) (?=(?:%|ms|s|m|h|d|min)(?!\w))")


def unbroken(text: str) -> str:
    """Returns the text with a no-break space between each number and its unit."""
    return _IN_QUANTITY.sub("\N{NO-BREAK SPACE}", text)


def rendered(template: Path, **values: Any) -> str:
    """Returns a page: `PAGE`, and the rendered template. All values are escaped.

    Templates have two filters: `shown` removes unprintable characters, and `unbroken` keeps numbers
    and their units on one line.
    """
    # Imported here: only a page needs it.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = printable
    environment.filters["unbroken"] = unbroken
    return PAGE + environment.from_string(template.read_text("utf-8")).render(**values)
