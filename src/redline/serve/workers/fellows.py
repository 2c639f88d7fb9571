"""Publishes the figures of each worker, so that any worker can serve a page with all of them.

Each worker writes its figures to a file once a second, and before it serves a page of metrics. When
a worker is lost, its replacement continues its counters; no page shows a lower count than before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from redline.clock import SYSTEM
from redline.job.monitor import Family
from redline.serve.dashboard import Snapshot
from redline.serve.workers.summing import added
from redline.serve.workers.worker import Worker

# If a worker has not written for this long, only its metrics that never decrease are used.
_FRESH_S = 5.0


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one worker. at_s: their time, in monotonic seconds. families: its metrics.

    snapshot: its part of the dashboard. buckets: the numbers of calls in the last minute, by
    duration, in the buckets of a histogram.
    """

    at_s: float
    families: list[Family]
    snapshot: Snapshot
    buckets: list[int]


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(Published)


class Fellows:
    """Reads the figures of the other workers, and publishes those of this worker."""

    def __init__(self, worker: Worker) -> None:
        self._others = [Path(worker.folder, f"{one}.figures") for one in range(worker.workers)]
        self._own = self._others.pop(worker.number)
        # The counts of the lost workers that this worker replaces.
        before = _read(self._own)
        self._before = [] if before is None else growing(before.families)

    def publish(self, published: Published) -> None:
        """Publishes this worker's figures."""
        published = msgspec.structs.replace(
            published, families=added([self._before, published.families])
        )
        beside = self._own.with_suffix(".new")
        try:
            beside.write_bytes(_ENCODE(published))
            os.replace(beside, self._own)
        except OSError:
            # The other workers then do without the latest figures of this one.
            return

    def added_to(self, own: Sequence[Family]) -> list[Family]:
        """Returns the metrics of all workers. own: the metrics of this worker."""
        horizon_s = SYSTEM.now_s() - _FRESH_S
        others = [
            one.families if one.at_s > horizon_s else growing(one.families) for one in self._read()
        ]
        return added([self._before, own, *others])

    def fresh(self) -> list[Published]:
        """Returns the figures of the other workers that are serving now."""
        horizon_s = SYSTEM.now_s() - _FRESH_S
        return [one for one in self._read() if one.at_s > horizon_s]

    def _read(self) -> list[Published]:
        found = map(_read, self._others)
        return [one for one in found if one is not None]


def growing(families: Sequence[Family]) -> list[Family]:
    """Returns the metrics that never decrease."""
    return [family for family in families if family.kind != "gauge"]


def _read(path: Path) -> Published | None:
    try:
        return _DECODER.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
