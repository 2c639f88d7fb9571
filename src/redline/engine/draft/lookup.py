"""Drafts without a model: proposes what followed an earlier occurrence of the last tokens.

This is prompt lookup (Saxena 2023), with an index like that of deflate (RFC 1951): each place links
to the previous place at which the same two tokens end, and the longest of the latest matches is
used.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

# A match of one token is mostly chance, and a match of more than eight tokens predicts no better.
# Only the latest matches are tried, since older text is less similar. The last two constants bound
# the cost of a proposal.
_SHORTEST = 2
_LONGEST = 8
_MOST_TRIED = 16


class Lookup:
    """The index of one sequence. Uses about 100 bytes for each of its tokens."""

    def __init__(self) -> None:
        # The latest place of each pair of tokens; for each place, the previous place of its pair.
        self._latest: dict[int, int] = {}
        self._earlier = array("i", [-1])

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Returns `most` tokens that may come next; none if the last two have no earlier match.

        tokens: the tokens of the previous call, then any number of new ones. A match that reaches
        the end continues with the tokens just proposed, so a repetition is repeated further. Takes
        O(new tokens + most).
        """
        last = len(tokens) - 1
        if most < 1 or last < 1:
            return []
        self._index(tokens, last)
        match = self._match(tokens, last)
        if match < 0:
            return []
        period = last - match
        return [tokens[match + 1 + at % period] for at in range(most)]

    def _index(self, tokens: Sequence[int], end: int) -> None:
        """Chains the places before `end`, so the last tokens do not match themselves."""
        for place in range(len(self._earlier), end):
            pair = tokens[place - 1] << 32 | tokens[place]
            self._earlier.append(self._latest.get(pair, -1))
            self._latest[pair] = place

    def _match(self, tokens: Sequence[int], last: int) -> int:
        """Returns the latest place with the longest match of the last tokens, or -1."""
        best, best_length = -1, 0
        place = self._latest.get(tokens[last - 1] << 32 | tokens[last], -1)
        for _ in range(_MOST_TRIED):
            if place < 0:
                break
            length = _SHORTEST
            most = min(_LONGEST, place + 1)
            while length < most and tokens[place - length] == tokens[last - length]:
                length += 1
            if length > best_length:
                best, best_length = place, length
            if length == _LONGEST:
                break
            place = self._earlier[place]
        return best
