"""Pages of HTML made from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redline.process import printable


def rendered(template: Path, **values: Any) -> str:
    """Returns the page of a template, which escapes all values; the filter `shown` cleans texts."""
    # Imported here: only a page needs it.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = printable
    return environment.from_string(template.read_text("utf-8")).render(**values)
