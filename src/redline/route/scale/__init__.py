"""Decides how many replicas a fleet should have, and keeps that many running.

This folder is public API, for launchers other than the local one: see Launcher.
"""

from redline.route.balance import strategy_of
from redline.route.endpoints import seat_of
from redline.route.member import Seat
from redline.route.pool import Pool
from redline.route.scale.autoscaler import Autoscaler, Change, Decision, Sample, replay
from redline.route.scale.fleet import Failure, Fleet, Launcher
from redline.route.scale.launcher import LocalLauncher, LocalReplica
from redline.route.scale.settings import ScaleSettings

__all__ = [
    "Autoscaler",
    "Change",
    "Decision",
    "Failure",
    "Fleet",
    "Launcher",
    "LocalLauncher",
    "LocalReplica",
    "Pool",
    "Sample",
    "ScaleSettings",
    "Seat",
    "replay",
    "seat_of",
    "strategy_of",
]
