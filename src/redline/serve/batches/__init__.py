"""`/v1/files` and `/v1/batches`: lines of requests, answered by a job each."""

from redline.serve.batches.batches import Batches, BatchState, Snapshot
from redline.serve.batches.settings import BATCH_KEYS, BatchSettings, parse_batches
