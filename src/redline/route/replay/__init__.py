"""Simulates how another balancing strategy would have handled a recorded run."""

from redline.route.replay.results import Compared, Replay, Scored, Seeded, recommended
from redline.route.replay.scoring import MOST_CALLS, replay
from redline.route.replay.service import Served, Service, fitted
