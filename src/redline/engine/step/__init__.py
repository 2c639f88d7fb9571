"""The engine's step, the thread that runs it, its metrics and its self-check."""

from redline.engine.step.core import Ask, Computer, Core, Speculation
from redline.engine.step.metrics import Metrics
from redline.engine.step.self_check import distance, open_runner, said, try_ranks
from redline.engine.step.thread import CLOSED, EngineFailed, EngineThread
