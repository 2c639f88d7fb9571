"""The web page of a gateway, and the state that it shows."""

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
