"""Runs jobs through the provider's Batch API: rows become parts, and parts become batches."""

from redline.job.batch.collect import Collector
from redline.job.batch.ledger import Ledger, Note
from redline.job.batch.part_store import PartStore
from redline.job.batch.plan import (
    MOST_BYTES,
    MOST_ROWS,
    Pace,
    bad_lines,
    fits,
    is_full,
    is_sent_again,
    live_s,
    margin_s,
    next_look_s,
    outcome_of,
    reasons_of,
)
from redline.job.batch.runner import BatchRunner, batches_of, goes_by_batches, open_ledger
from redline.job.batch.spool import (
    Kept,
    PartReader,
    PartWriter,
    chunks_of,
    marked_keys_of,
    upload_of,
)
from redline.job.batch.world import HeldRows, World
