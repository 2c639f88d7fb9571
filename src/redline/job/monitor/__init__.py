"""Reports the metrics and alerts of a running job to other programs."""

from redline.job.monitor.metrics import (
    BOUNDS_S,
    ENDPOINT_STATES,
    Family,
    Histogram,
    counter,
    gauge,
)
from redline.job.monitor.monitor import Monitor, alerts_of
from redline.job.monitor.webhook import Webhook
