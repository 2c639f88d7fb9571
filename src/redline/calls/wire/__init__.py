"""Speaks HTTP/1.1 to one host: endpoint settings, connections, exchanges and their deadlines."""

from redline.calls.wire.chunks import chunks_in, size_line
from redline.calls.wire.connection import MOST_HEADER_BYTES, Connection
from redline.calls.wire.deadlines import Deadline, Stops, TaskTimeout
from redline.calls.wire.endpoint import Endpoint, Timeouts, check_path, is_http_url, proxy_of
from redline.calls.wire.exchange import (
    EVENTS,
    Alarm,
    Answer,
    Exchange,
    Repeat,
    Timing,
    TooLate,
    do_nothing,
)
from redline.calls.wire.reply_memory import LONG_BYTES, ReplyMemory
from redline.calls.wire.transport import Outbox, Transport
