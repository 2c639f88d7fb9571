"""Defines every name that is sent to OpenTelemetry, with its unit and buckets.

`gen_ai.*`, `error.type` and `server.*` are from the semantic conventions 1.41.0, the last release
that contains the conventions for generative AI, which have the status Development. Metrics with
their buckets, and spans:
https://github.com/open-telemetry/semantic-conventions/blob/v1.41.0/docs/gen-ai/gen-ai-metrics.md
https://github.com/open-telemetry/semantic-conventions/blob/v1.41.0/docs/gen-ai/gen-ai-spans.md
These conventions are continued at https://github.com/open-telemetry/semantic-conventions-genai,
where metrics have new names that no dashboard supports yet.

The metrics `redline.*` are from the page for Prometheus (`job/monitor/metrics.py`, which also
defines their units), with the same labels, and with the prefix `redline.` instead of `redline_`. If
a collector exports these metrics to Prometheus, they get the page's names again.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from redline.apis import PLAIN, api_of
from redline.job.monitor import Family

SCOPE = "redline"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
HTTP_STATUS = "http.response.status_code"

# The attributes for the numeric fields of a request's body, by field.
REQUEST_FIELDS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
}

# The attributes of a call's span, and of the event for a failed attempt.
ATTEMPTS = "redline.attempts"
ENDPOINT = "redline.endpoint"
WAITED = "redline.waited"  # seconds from queueing to the first write
ATTEMPT_FAILED = "redline.attempt.failed"
ATTEMPT_NUMBER = "redline.attempt.number"
ATTEMPT_DURATION = "redline.attempt.duration"  # seconds from its write to its end

# The attributes of the resource, which describes the sender.
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"
DEFAULT_SERVICE = "redline"


class HistogramName(msgspec.Struct, frozen=True):
    """The name, unit, description (`about`) and buckets of a histogram.

    bounds: the inclusive upper bounds of its buckets, ascending; a further bucket takes all larger
    values.
    """

    name: str
    unit: str
    about: str
    bounds: tuple[float, ...]


_SECONDS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
DURATION = HistogramName(
    "gen_ai.client.operation.duration", "s", "GenAI operation duration.", _SECONDS
)
TIME_TO_FIRST_CHUNK = HistogramName(
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    "Time from the write of a request to the first chunk of a streamed answer.",
    _SECONDS,
)
TOKEN_USAGE = HistogramName(
    "gen_ai.client.token.usage",
    "{token}",
    "Number of input and output tokens used.",
    tuple(4.0**exponent for exponent in range(14)),
)
HISTOGRAMS = (DURATION, TIME_TO_FIRST_CHUNK, TOKEN_USAGE)


def exported_name(family: Family) -> str:
    """Returns the name under which a family of the metrics page is exported."""
    return f"{SCOPE}.{family.name.removeprefix('redline_')}"


# Providers by the suffix of their host name. Any other endpoint counts as OpenAI, because it has
# OpenAI's API: the attribute says whose conventions a call follows.
_PROVIDERS = {
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "anthropic.com": "anthropic",
    "amazonaws.com": "aws.bedrock",
    "cohere.com": "cohere",
    "cohere.ai": "cohere",
    "deepseek.com": "deepseek",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "moonshot.ai": "moonshot_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}
OPENAI = "openai"
# The provider if the user's own function answers the calls.
OTHER = "_OTHER"
_OPERATIONS = {
    "/chat/completions": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}
OTHER_OPERATION = "request"


class Place(msgspec.Struct, frozen=True):
    """The server that answers calls. address: its host name; empty for a function."""

    provider: str = OTHER
    address: str = ""
    port: int = 0


def place_of(base_url: str) -> Place:
    """Returns an endpoint's provider, host name and port, from its base URL.

    A host that is not known counts as `openai`.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = [name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}")]
    return Place(found[0] if found else OPENAI, host, port)


def operation_of(url: str) -> str:
    """Returns the operation name of a request to the path `url`."""
    api = api_of(url)
    return OTHER_OPERATION if api is PLAIN else _OPERATIONS.get(api.ending, OTHER_OPERATION)
