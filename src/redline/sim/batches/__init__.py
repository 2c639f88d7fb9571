"""Simulates the provider's Batch API: files, batches and their HTTP paths."""

from redline.sim.batches.batches import Batches
from redline.sim.batches.door import BatchDoor, bad_body, read_body, refusal
