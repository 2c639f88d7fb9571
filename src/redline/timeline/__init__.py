"""A recorded run: its structs, and the file that they are in."""

from redline.timeline.recorder import Recorder
from redline.timeline.records import (
    VERSION,
    CallEnded,
    CallsDropped,
    EndpointFacts,
    RunBegan,
    Tried,
)
from redline.timeline.trace import RecordedRun, Trace, read_trace
from redline.timeline.writer import TraceFile
