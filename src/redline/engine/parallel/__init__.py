"""Tensor and pipeline parallelism: a coordinator, and a process for each rank."""

from redline.engine.parallel.coordinator import Ranks, make_computer
from redline.engine.parallel.rank import main
from redline.engine.parallel.shard import Placement, Source, load_shard, weight_files
