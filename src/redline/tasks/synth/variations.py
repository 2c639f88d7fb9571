"""Makes the input rows of a synthesis: one for each text, all different."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from redline.errors import ConfigError

OWN = ("n", "seed")
# The columns of `vary` that become parameters of the request.
SAMPLING = ("temperature", "top_p")


class Variations:
    """Iterates over `count` input rows of a synthesis.

    A row has a number n from 1, the seed `first_seed` + n, the columns of one row of `base` if
    `base` is given, and one value of each list in `vary`.

    Every combination of base row and values occurs once before any occurs again, and the first rows
    are spread over each list. A row does not depend on `count`: a larger count only adds rows.
    first_seed: None for rows without a seed. A base row's custom_id becomes `ID#1`, `ID#2`, ... in
    the order of its occurrences. Raises ConfigError for a column that would occur twice, for a list
    of custom_ids, and for a list without values.
    """

    def __init__(
        self,
        count: int,
        *,
        first_seed: int | None = 0,
        vary: Mapping[str, Sequence[Any]] | None = None,
        base: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._count = count
        self._first_seed = first_seed
        self._vary = dict(vary or {})
        self._base = base
        self._check()
        # Whether the user gave columns that the prompt may use.
        self.has_columns = bool(self._base or self._vary.keys() - set(SAMPLING))
        self.sampling = tuple(name for name in SAMPLING if name in self._vary)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        axes = [axis for axis in (self._base, *self._vary.values()) if axis]
        lengths = [len(axis) for axis in axes]
        for n in range(1, self._count + 1):
            row: dict[str, Any] = {"n": n}
            if self._first_seed is not None:
                row["seed"] = self._first_seed + n
            places = combination(n - 1, lengths)
            if self._base:
                row |= self._base[places.pop(0)]
                if "custom_id" in row:
                    row["custom_id"] = f"{row['custom_id']}#{(n - 1) // len(self._base) + 1}"
            values = zip(self._vary.items(), places, strict=True)
            row |= {name: choices[at] for (name, choices), at in values}
            yield row

    def settings(self) -> dict[str, Any]:
        """Returns what determines the rows, abbreviated for the manifest."""
        lists = {name: _in_short(values) for name, values in self._vary.items()}
        return {
            "first_seed": "off" if self._first_seed is None else str(self._first_seed),
            "vary": lists,
            "rows_from": _in_short(self._base) if self._base else None,
        }

    def _check(self) -> None:
        for name, values in self._vary.items():
            if name in OWN:
                raise ConfigError(f"{name} is already a column of every row", hint="rename it")
            if name == "custom_id":
                raise ConfigError(
                    "custom_id cannot be varied: each row needs its own",
                    hint="rename the column; each row already has its number, n",
                )
            if not values:
                raise ConfigError(f"there is no value for {name}", hint=f"--vary {name}=a,b,c")
        taken = {*OWN, *self._vary}
        for row in self._base:
            for name in row:
                if name in taken:
                    raise ConfigError(
                        f"the rows already have a column {name}, which redline synth adds",
                        hint="rename the column of the rows",
                    )


def combination(place: int, lengths: Sequence[int]) -> list[int]:
    """Returns the place-th combination: an index into each of the lists of these lengths.

    Each place advances every index by one, along a diagonal of the table of combinations. When a
    diagonal would return to its start, the next one begins, so each list is traversed as evenly as
    its length allows. For lists of A and B values, the first lcm(A, B) places are one diagonal.
    From place 0 on, every combination occurs once before any occurs again.
    """
    period = math.prod(lengths)
    chosen: list[int] = []
    for length in reversed(lengths):
        place %= period
        period //= length
        chosen.append((place + place // math.lcm(period, length)) % length)
    return chosen[::-1]


def _in_short(values: Sequence[Any]) -> str:
    """Returns the number of values and a digest of them: `12 values 3f2a9c01`."""
    digest = blake2b(msgspec.json.encode(values), digest_size=4).hexdigest()
    return f"{len(values)} values {digest}"
