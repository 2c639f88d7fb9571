"""What all backends share: Request, Call, Reply, Outcome, Sink and Backend."""

from redline.waist.backend import Backend, Call, Chunk, Request, Sink
from redline.waist.counters import Attempts, CacheUse
from redline.waist.outcome import Outcome, Reply, failed
