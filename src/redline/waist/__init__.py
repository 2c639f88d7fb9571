"""Defines the types that all backends share, such as Request, Call, Outcome, Load and Backend."""

from redline.waist.backend import (
    COUNTED,
    MORE_TIME,
    Around,
    Backend,
    Call,
    Chunk,
    Held,
    Member,
    Outlet,
    Request,
    Sink,
    is_backend,
)
from redline.waist.counters import Attempts, CacheUse
from redline.waist.load import Health, Load
from redline.waist.outcome import MOST_TRIED, Attempt, Outcome, Reply, Status, failed
from redline.waist.surrogates import has_halves, replacing_halves
