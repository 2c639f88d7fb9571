"""Decides how many replicas a fleet should have, and keeps that many running."""

from redline.route.scale.autoscaler import Autoscaler, Capacity, Change, Decision, Sample, replay
from redline.route.scale.fleet import Failure, Fleet, Launcher
from redline.route.scale.launcher import TRIALS, LocalLauncher, LocalReplica
from redline.route.scale.settings import POLICIES, ScaleSettings
