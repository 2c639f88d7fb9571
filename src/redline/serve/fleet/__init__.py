"""Serves a fleet of replicas behind one URL, as described by a file."""

from redline.serve.fleet.service import FleetStatus, ServedFleet, serve_fleet
from redline.serve.fleet.settings import FleetSettings, FrontSettings, front_of, read_fleet
