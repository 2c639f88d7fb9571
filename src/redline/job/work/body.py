"""Encodes bodies that differ only in texts taken from the row; the rest is encoded once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from redline.errors import Rejected
from redline.waist import COUNTED

_ENCODER = msgspec.json.Encoder()
# Separates the strings in the output of `encode_lines`. No encoded string contains it, because
# quotes are escaped in strings.
_SEAM = b'"\n"'


class FixedBody:
    """The JSON of a body that is the same for all rows, except for columns inserted in its strings.

    make: makes the body of a row. columns: all columns that `make` reads. kinds: the types whose
    values `make` inserts as `str(value)`. others: columns that change the rest of the body if the
    row has them. asked: the fields of the body that determine the number of answers; None if a
    column is in one of them. Raises ValueError if `make` does not return such a body.
    """

    def __init__(
        self,
        make: Callable[[dict[str, Any]], Any],
        columns: Iterable[str],
        *,
        kinds: Collection[type],
        others: Iterable[str],
    ) -> None:
        names = list(columns)
        mark = os.urandom(16).hex()
        marked = {name: f"{mark}{place:08d}" for place, name in enumerate(names)}
        try:
            body = make(marked)
            text = _ENCODER.encode(body)
        except (Rejected, TypeError, RecursionError) as error:
            raise ValueError("the body cannot be made of texts alone") from error
        fixed = re.split(rb"%s(\d{8})" % mark.encode(), text)
        # `fixed` alternates between fixed text and the place of a column in `names`.
        self._columns = [names[int(place)] for place in fixed[1::2]]
        if not self._columns:
            raise ValueError("the body has no column")
        self._format = b"%b".join(part.replace(b"%", b"%%") for part in fixed[::2])
        # The column, if there is only one; otherwise None, which is not the name of any column.
        self._only: Any = self._columns[0] if len(self._columns) == 1 else None
        self._before, self._after = fixed[0], fixed[-1]
        asked = {name: body[name] for name in COUNTED.intersection(body)}
        self.asked = None if mark.encode() in _ENCODER.encode(asked) else asked
        self._kinds = frozenset(kinds)
        self._others = frozenset(others)
        self._other = next(iter(self._others)) if len(self._others) == 1 else None

    def json(self, row: dict[str, Any]) -> bytes | None:
        """Returns the body of the row as JSON; None if `make` has to make it.

        That is the case if the row has one of the `others`, or if a value has a type that is not in
        `kinds` or cannot be encoded.
        """
        other = self._other
        if (other in row) if other is not None else not self._others.isdisjoint(row):
            return None
        try:
            text = row.get(self._only)
            if type(text) is str:
                return self._before + _ENCODER.encode(text)[1:-1] + self._after
            values = list(map(row.get, self._columns))
            if not self._kinds.issuperset(map(type, values)):
                return None
            texts = _ENCODER.encode_lines(list(map(str, values)))
        except ValueError:
            # A number with thousands of digits, or a character that UTF-8 cannot encode.
            return None
        return self._format % tuple(texts[1:-2].split(_SEAM))
