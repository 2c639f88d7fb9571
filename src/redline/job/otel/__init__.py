"""What a job sends to OpenTelemetry; apart from the rest, for runs that send nothing."""

from redline.job.otel.telemetry import Telemetry, open_telemetry
