"""Simulates how another balancing strategy would have handled a recorded run."""

from redline.route.replay.results import Compared, Replay, Scored, Seeded, compared, recommended
from redline.route.replay.scoring import MOST_CALLS, SEEDS, replay
from redline.route.replay.service import Served, Service, fitted
