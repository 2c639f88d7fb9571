"""How the law says that it is broken."""

from __future__ import annotations


class Broken(AssertionError):
    """The law does not hold; in words."""


def holds(is_so: bool, otherwise: str) -> None:
    """Raises Broken with these words unless it is so."""
    if not is_so:
        raise Broken(otherwise)
