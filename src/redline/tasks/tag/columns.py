"""Finds the column with the text to tag, and the column with the gold labels."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from redline.errors import ConfigError, nearest
from redline.process import listed
from redline.sources import first_rows
from redline.store import local_path, url_of
from redline.tasks.tag.schema import Schema

_TEXT = "text"
# A row that has all names of one of these sets has its own prompt.
_OWN_CONTENT = ({"messages"}, {"prompt"}, {"input"}, {"url", "body"})
# If a table has a single column, one of these in its name means that the header was not split.
_SEPARATORS = frozenset(";\t|")
# Names that never refer to a column in a Jinja expression.
_JINJA_WORDS = frozenset(("true", "True", "false", "False", "none", "None", "not"))
# If this many rows at the start are all broken, the columns remain unknown.
_MOST_LOOKED_AT = 1000


class Gold(msgspec.Struct, frozen=True):
    """A field of the tags, and the column with the gold labels for it."""

    field: str
    column: str


def first_row(rows: str) -> Mapping[str, Any] | None:
    """Returns the first readable row.

    Returns None if none of the first 1,000 is readable, and for an input that can be read only
    once, such as a pipe. Raises ConfigError if the rows cannot be read at all.
    """
    if url_of(rows) is None:
        path = local_path(rows)
        # Other inputs can be read only once.
        if not path.is_file() and not path.is_dir():
            return None
    with first_rows(rows, _MOST_LOOKED_AT) as looked_at:
        return next((row.data for row in looked_at if row.data is not None), None)


def prompt_of(row: Mapping[str, Any] | None, rows: str, gold: Gold | None) -> str | None:
    """Returns a prompt template with a row's text: its column `text`, or its only column.

    The columns custom_id and gold do not count. Returns None if the rows have their own prompts.
    row: the first row; None if it is unknown, and a column `text` is assumed. rows: the name of
    the rows, for the error. Raises ConfigError if several columns are possible, or none.
    """
    if row is None:
        return _template(_TEXT)
    if any(names <= row.keys() for names in _OWN_CONTENT):
        return None
    known = {"custom_id", gold.column} if gold is not None else {"custom_id"}
    columns = [name for name in row if name not in known]
    if _TEXT in columns:
        return _template(_TEXT)
    if len(columns) == 1 and _SEPARATORS.isdisjoint(columns[0]):
        return _template(columns[0])
    example = shlex.quote(_template(next(iter(columns), _TEXT)))
    raise ConfigError(
        "it is unclear which column to tag",
        where=rows,
        hint=f"choose it with --prompt {example}; the columns are: {listed(row)}",
    )


def _template(column: str) -> str:
    """Returns the template for a column: `{{ name }}`, or `{{ row["its name"] }}`."""
    if column.isidentifier() and column not in _JINJA_WORDS:
        return f"{{{{ {column} }}}}"
    # Jinja decodes escapes in a string as Python does, and those of JSON are among them.
    return f"{{{{ row[{json.dumps(column, ensure_ascii=False)}] }}}}"


def gold_of(text: str, schema: Schema, row: Mapping[str, Any] | None) -> Gold:
    """Parses COLUMN or FIELD=COLUMN.

    row: a row that has the columns; None if they are unknown. Raises ConfigError if the field or
    the column does not exist, and for a COLUMN alone if it may belong to several fields.
    """
    field, equals, column = text.partition("=")
    known = listed(schema.fields)
    if not equals or (row is not None and text in row):
        # A column's name may itself contain an equals sign.
        column, fields = text, list(schema.labels) or list(schema.fields)
        if len(fields) != 1:
            raise ConfigError(
                f"--gold {text} does not say which field of a tag it is compared with",
                hint=f"--gold FIELD={text}, where FIELD is one of: {known}",
            )
        field = fields[0]
    if field not in schema.fields:
        raise ConfigError(
            f"--gold {text} names no field of a tag: {field}",
            hint=nearest(field, schema.fields) or f"the fields are: {known}",
        )
    if row is not None and column not in row:
        raise ConfigError(
            f"the first row has no column {column}",
            hint=nearest(column, row) or f"it has: {listed(row)}",
        )
    return Gold(field, column)
