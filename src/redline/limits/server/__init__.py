"""Reads what a server states about its limits (headers, 429 responses), and adjusts to it."""

from redline.limits.server.feedback import Feedback, Pressure
from redline.limits.server.headers import HeaderReader, processing_s
from redline.limits.server.retry_after import retry_after_s, stated_in_body
from redline.limits.server.stated_limit import Stated
