"""Figures of a batcher, for metrics and displays."""

from __future__ import annotations

import msgspec


class BatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a batcher, and its counts since it was made.

    waiting: queued items. in_flight: batches in flight. batches: batches sent, each counted once.
    items: their items. places: items that they could have had. sizes: batches by number of items;
    a longer list, which is sent alone, counts as a full batch. closed: batches by reason: `full`,
    `waited` or `idle`. waited_s: seconds that the items of all batches have waited, in total.
    divided: calls beyond the first of a batch, to find the requests for which it was refused.
    alone: calls that cannot share a batch, passed on unchanged. refused: requests for which the
    queue had no room.
    """

    waiting: int
    in_flight: int
    batches: int
    items: int
    places: int
    sizes: dict[int, int]
    closed: dict[str, int]
    waited_s: float
    divided: int
    alone: int
    refused: int

    @property
    def batch_efficiency(self) -> float | None:
        """The share of the places in batches that was filled, 0 to 1; None before the first."""
        return self.items / self.places if self.places else None

    @property
    def mean_size(self) -> float | None:
        """The mean number of items of a batch; None before the first batch."""
        return self.items / self.batches if self.batches else None

    @property
    def mean_wait_s(self) -> float | None:
        """The mean wait of an item for its batch, in seconds; None before the first batch."""
        return self.waited_s / self.items if self.items else None


class BatchCounts:
    """Counts the batches of one batcher."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.batches = self.items = self.places = 0
        self.sizes: dict[int, int] = {}
        self.closed = {"full": 0, "waited": 0, "idle": 0}
        self.waited_s = 0.0
        self.divided = self.alone = self.refused = 0

    def sent(self, items: int, why: str, waited_s: float) -> None:
        """Counts a batch that was sent. waited_s: the sum of its items' waits, in seconds."""
        self.batches += 1
        self.items += items
        self.places += max(self._size, items)
        size = min(self._size, items)
        self.sizes[size] = self.sizes.get(size, 0) + 1
        self.closed[why] += 1
        self.waited_s += waited_s

    def divided_once(self) -> None:
        """Counts a call for a part of a refused batch."""
        self.divided += 1

    def passed_on(self) -> None:
        """Counts a call that was passed on alone."""
        self.alone += 1

    def refused_one(self) -> None:
        """Counts a request for which there was no room."""
        self.refused += 1

    def figures(self, waiting: int, in_flight: int) -> BatchFigures:
        return BatchFigures(
            waiting=waiting,
            in_flight=in_flight,
            batches=self.batches,
            items=self.items,
            places=self.places,
            sizes=dict(sorted(self.sizes.items())),
            closed=dict(self.closed),
            waited_s=self.waited_s,
            divided=self.divided,
            alone=self.alone,
            refused=self.refused,
        )
