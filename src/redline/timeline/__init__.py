"""Records runs: the structs and files of traces (each call) and of timelines (windows of time)."""

from redline.timeline.gather import Counters, Gatherer, Sample
from redline.timeline.history import (
    MOST_BYTES,
    NAME,
    TIMELINE_VERSION,
    Ending,
    RunEnd,
    RunFacts,
    RunHistory,
    Timeline,
    TimelineFile,
    read_timeline,
    shortened,
)
from redline.timeline.prediction import Prediction
from redline.timeline.recorder import Recorder
from redline.timeline.records import (
    VERSION,
    CallEnded,
    CallsDropped,
    EndpointFacts,
    RunBegan,
    Tried,
)
from redline.timeline.sketch import ERROR as SKETCH_ERROR
from redline.timeline.sketch import Sketch, merged_sketches, without
from redline.timeline.spread import MOST_EXACT, Quantiles, Spread
from redline.timeline.trace import RecordedRun, Trace, read_trace
from redline.timeline.window import (
    HOLDERS,
    MOST_ENDPOINTS,
    MOST_LIMITS,
    NO_USE,
    WINDOW_S,
    EndpointState,
    Holder,
    LimitUse,
    Phases,
    ServerUse,
    Totals,
    Window,
    coarsened,
    errors_of,
    merged,
    merged_phases,
    merged_use,
    rounded,
)
from redline.timeline.writer import TraceFile
