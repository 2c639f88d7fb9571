"""Measures the throughput of a target under load, and finds the concurrency that is enough."""

from redline.measure.callers import Answer, Caller, caller_of, takes_requests
from redline.measure.figures import Figures
from redline.measure.knee import Knee, knee_of
from redline.measure.load import Plan
from redline.measure.measuring import (
    Interrupts,
    Measuring,
    Started,
    in_own_loop,
    measured,
    nothing_measured,
    swept,
)
from redline.measure.prompts import Prompts
from redline.measure.schedule import recorded
from redline.measure.slo import parse_objectives
from redline.measure.text import figures_lines, knee_lines, level_lines
from redline.measure.throughput import (
    SCHEDULE_CONCURRENCY,
    USUAL_CONCURRENCY,
    ThroughputMetrics,
    checked_plan,
    load_words,
    schedule_of,
)
