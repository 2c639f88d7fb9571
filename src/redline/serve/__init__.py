"""The gateway's HTTP front, and what is behind it: a local engine, or a fleet."""

from redline.serve.fleet import FleetStatus, ReplicaStatus, ServedFleet, serve_fleet
from redline.serve.fleet_settings import FleetSettings, FrontSettings, front_of, read_fleet
from redline.serve.local import LocalEngine, Serving, serve_engine, serving
