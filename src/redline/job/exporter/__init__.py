"""The metrics page of a job; apart from the metrics, for runs that do not serve them."""

from redline.job.exporter.metrics_page import MetricsPage
from redline.job.exporter.metrics_server import MetricsServer
