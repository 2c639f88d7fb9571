"""Makes an HTTP endpoint a backend: slot, connection, rate grant, write, read, settle."""

from redline.calls.http.backend import HttpBackend
from redline.calls.http.chunk_relay import ChunkRelay
from redline.calls.http.events import StreamReader, refuse_partial, streaming
from redline.calls.http.limits import EndpointLimits, Shared, Stores, account_of, limiter_of
from redline.calls.http.masking import Mask
from redline.calls.http.outage import Outage, is_unreachable
from redline.calls.http.waiting import Wait, wait_of_this_task
