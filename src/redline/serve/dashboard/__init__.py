"""Shows a gateway's state on a web page."""

from redline.serve.dashboard.dashboard import Dashboard
from redline.serve.dashboard.snapshot import (
    Binding,
    ClassView,
    EndpointView,
    Event,
    Second,
    Snapshot,
    TenantView,
)
