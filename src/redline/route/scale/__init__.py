"""Decides how many replicas a fleet should have, and keeps that many running."""

from redline.route.scale.autoscaler import Autoscaler, Change, Decision, Sample, replay
from redline.route.scale.fleet import Failure, Fleet
from redline.route.scale.launcher import LocalLauncher, LocalReplica
from redline.route.scale.settings import ScaleSettings
