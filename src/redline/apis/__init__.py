"""Defines the formats of the OpenAI APIs and of Anthropic's Messages API, each once."""

from redline.apis import (
    chat,
    completions,
    embeddings,
    event_stream,
    loose_json,
    messages,
    replies,
    responses,
)
from redline.apis.api import Api
from redline.apis.batches import (
    BATCHES,
    ENDED,
    FILES,
    MOST_FILE_BYTES,
    MOST_LINES,
    UNFINISHED,
    WINDOW,
    Batch,
    BatchObject,
    BatchRequest,
    ExpiresAfter,
    FileObject,
    LineChecker,
    Problem,
    RequestLine,
    ResultLine,
    answer_object,
    counts_object,
    deleted_object,
    errors_object,
    page_object,
    read_line,
    result_object,
)
from redline.apis.choices import (
    ChoicesRequest,
    ChoicesWriter,
    Form,
    SampledRequest,
    drafts,
    has_ended,
    is_usage_event,
)
from redline.apis.error_inside import ErrorInside, judge_part
from redline.apis.errors import error_body, judge, lacks_model
from redline.apis.event_stream import (
    DONE,
    DONE_EVENT,
    ErrorData,
    EventForm,
    EventParser,
    event_bytes,
    event_form_of,
    is_text,
)
from redline.apis.loose_json import BOM, number
from redline.apis.replies import APIS, PLAIN, api_of
from redline.apis.request_parts import Inputs, JsonSchema, ResponseFormat, StreamOptions
from redline.apis.streams import StreamedAnswer, read_event
from redline.apis.usage import (
    MOST_TOKENS,
    Usage,
    completion_usage,
    read_usage,
    response_usage,
    stated_tokens,
)
