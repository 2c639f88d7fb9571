"""Counts the batches and items of a batcher, for metrics and displays."""

from __future__ import annotations

import msgspec


class BatchFigures(msgspec.Struct, kw_only=True):
    """The current state of a batcher, and its counts since it was created.

    waiting: queued items. in_flight: batches in flight. batches: batches sent, each counted once.
    items: the items in these batches. places: the items for which these batches had room. sizes:
    batches by their number of items; a list longer than a batch, which is sent alone, counts as
    a full batch. closed: batches by the reason for sending them: `full`, `waited` or `idle`.
    waited_s: seconds that items have waited for their batches, in total. divided: calls of a batch
    after its first one, mostly to find the requests at fault. alone: calls that cannot share a
    batch, passed on unchanged. refused: requests for which the queue had no room.
    """

    waiting: int = 0
    in_flight: int = 0
    batches: int = 0
    items: int = 0
    places: int = 0
    sizes: dict[int, int] = {}
    closed: dict[str, int] = msgspec.field(
        default_factory=lambda: {"full": 0, "waited": 0, "idle": 0}
    )
    waited_s: float = 0.0
    divided: int = 0
    alone: int = 0
    refused: int = 0

    @property
    def batch_efficiency(self) -> float | None:
        """The share of places in batches that were filled, 0 to 1; None before the first batch."""
        return self.items / self.places if self.places else None

    @property
    def mean_size(self) -> float | None:
        """The mean number of items of a batch; None before the first batch."""
        return self.items / self.batches if self.batches else None

    @property
    def mean_wait_s(self) -> float | None:
        """The mean seconds that an item waited for its batch; None before the first batch."""
        return self.waited_s / self.items if self.items else None
