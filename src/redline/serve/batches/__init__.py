"""Serves `/v1/files` and `/v1/batches`: each batch of request lines runs as a job."""

from redline.serve.batches.batches import Batches, BatchView
from redline.serve.batches.settings import BATCH_OPTIONS, BatchSettings, parse_batches
