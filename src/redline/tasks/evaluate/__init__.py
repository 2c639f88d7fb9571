"""Evaluation: metrics, judges, scores, statistics and comparisons."""

from redline.tasks.evaluate.comparison import Comparison, compare
from redline.tasks.evaluate.evaluation import BUILT_IN, Evaluation, Grading, verdict
from redline.tasks.evaluate.judge import JudgeSettings, verdict_in
from redline.tasks.evaluate.metrics import Grade, metric_of
from redline.tasks.evaluate.scores import Scores
from redline.tasks.evaluate.statistics import (
    majority,
    paired,
    pass_at,
    share_interval,
    wilson,
)
from redline.tasks.evaluate.task_file import built_in, load, shots_of
from redline.tasks.evaluate.text import as_text, in_thread_if_long, summary
from redline.tasks.evaluate.usage_sum import UsageSum
