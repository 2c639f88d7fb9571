"""Finds what holds a job back, what helps and when it ends, from the windows of its timeline."""

from redline.observe.alert_rules import (
    BUILT_IN,
    KNOWN_RULES,
    OF_A_MODEL,
    AlertSettings,
    Rule,
)
from redline.observe.alerts import Alert, Alerts
from redline.observe.binding import bindings, current, recent
from redline.observe.causes import Binding, Cause
from redline.observe.eta import Estimate, estimate
from redline.observe.prediction import (
    Score,
    Setting,
    advice,
    best_of,
    expected,
    gain_text,
    measured_per_s,
    predictions,
    scores_of,
    setting_of,
)
from redline.observe.shares import Share, stretches, summary_of
from redline.observe.status import (
    SILENT_S,
    State,
    Status,
    status_of,
    time_by_phase,
)
