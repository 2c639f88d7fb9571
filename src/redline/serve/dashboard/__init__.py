"""What people see of a gateway: a page, and the state that it shows."""

from redline.serve.dashboard.dashboard import Dashboard
from redline.serve.dashboard.snapshot import (
    BatchView,
    Binding,
    ClassView,
    EndpointView,
    Event,
    Second,
    Snapshot,
    TenantView,
)
