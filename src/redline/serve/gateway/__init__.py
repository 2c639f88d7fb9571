"""One address in front of every endpoint: `redline serve`."""

from redline.serve.gateway.service import Served, gateway_of, serve_gateway, serve_workers
from redline.serve.gateway.settings import (
    CLASS_OPTIONS,
    Certificate,
    FunctionSettings,
    GatewaySettings,
    parse_classes,
)
