"""Converts requests of the Messages API to chat requests.

a field or block                                    becomes
system                                              the first message, with a line for each text
messages of one role in a row                       one message, since chat templates expect turns
tool_result                                         a `tool` message, right after the calls
is_error                                            `Error: ` before the result's text
images of a tool_result                             parts of the user message after it
thinking, redacted_thinking; `thinking`             nothing
text documents, search results                      their title, source and text
a PDF in base64                                     a `file` part
a tool with an input_schema                         a function
output_config.format                                response_format
cache_control, service_tier, ... (`_DROPPED`)       nothing, since requests work without them
a document by URL or file id, tools and blocks      refused
of tools that Anthropic runs or defines,
container, thread, ... (`_REFUSED`)
a field that the Messages API does not have         the same field, since it is meant for the
                                                    server; nothing for `stop`, ... (`_OURS`)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Object = dict[str, Any]

_DROPPED = frozenset(
    {
        *("cache_control", "context_management", "diagnostics", "fallbacks", "inference_geo"),
        *("priority", "service_tier", "speed", "thinking", "user_profile_id"),
    }
)
_REFUSED = {
    "compaction": "chat servers make no summary of a conversation",
    "container": "chat servers have no containers",
    "mcp_servers": "chat servers call no MCP servers",
    "n": "a messages request gets one answer",
    "output_format": "give it as `output_config.format`",
    "thread": "chat servers keep no conversations",
}
# Chat fields that are set from other fields, or that determine the answer's format: a client's
# values for them are not passed on.
_OURS = frozenset(
    {
        *("function_call", "functions", "messages", "parallel_tool_calls", "response_format"),
        *("stop", "stream_options", "user"),
    }
)
# OpenAI's maximum length of a `user` in characters; Claude Code sends user ids of about 140.
_LONGEST_USER = 64
_PATH = re.compile(r"`\$\.?([^`]+)`")
_VALUE = re.compile(r"Invalid value '(.*)' - at")


class UntranslatableError(ValueError):
    """The request is invalid, or chat cannot express it.

    param: the field at fault; None if unknown.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class _Typed(Struct, tag_field="type"):
    """Base of structs whose `type` field determines the subclass that is decoded."""


class _Base64(_Typed, tag="base64"):
    media_type: str
    data: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class _Url(_Typed, tag="url"):
    url: str


class _PlainText(_Typed, tag="text"):
    data: str


class _Text(_Typed, tag="text"):
    text: str


class _Image(_Typed, tag="image"):
    source: _Base64 | _Url


class _Content(_Typed, tag="content"):
    content: str | list[_Text | _Image]


class _Document(_Typed, tag="document"):
    source: _Base64 | _PlainText | _Content
    title: str | None = None
    context: str | None = None


class _SearchResult(_Typed, tag="search_result"):
    source: str
    title: str
    content: list[_Text]


_Shown = _Text | _Image | _Document | _SearchResult


class _ToolResult(_Typed, tag="tool_result"):
    tool_use_id: str
    content: str | list[_Shown] | None = None
    is_error: bool | None = None


class _ToolUse(_Typed, tag="tool_use"):
    id: str
    name: str
    input: Object


class _Thinking(_Typed, tag="thinking"):
    pass


class _RedactedThinking(_Typed, tag="redacted_thinking"):
    pass


class _User(Struct, tag="user", tag_field="role"):
    content: str | list[_Shown | _ToolResult]


class _Assistant(Struct, tag="assistant", tag_field="role"):
    content: str | list[_Text | _ToolUse | _Thinking | _RedactedThinking]


class _System(Struct, tag="system", tag_field="role"):
    content: str | list[_Text]


class _Tool(Struct):
    name: str
    type: str | None = None
    input_schema: Object | None = None
    description: str | None = None
    strict: bool | None = None


class _Parallel(_Typed, kw_only=True):
    disable_parallel_tool_use: bool | None = None


class _Auto(_Parallel, tag="auto"):
    pass


class _Any(_Parallel, tag="any"):
    pass


class _Named(_Parallel, tag="tool"):
    name: str


class _None(_Typed, tag="none"):
    pass


class _Format(_Typed, tag="json_schema"):
    schema: Object


class _OutputConfig(Struct):
    format: _Format | None = None


class _Metadata(Struct):
    user_id: str | None = None


class _Prompt(Struct, kw_only=True):
    """The fields of a request that become tokens of the prompt."""

    model: str
    messages: Annotated[list[_User | _Assistant | _System], Meta(min_length=1)]
    system: str | list[_Text] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Auto | _Any | _Named | _None | None = None
    output_config: _OutputConfig | None = None


class _Request(_Prompt, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    metadata: _Metadata | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | int | None = None
    top_k: int | None = None
    top_p: float | int | None = None


_KNOWN = frozenset((*_Request.__struct_fields__, *_DROPPED, *_OURS, *_REFUSED))


def chat_of(body: Any) -> Object:
    """Converts a request to a chat request, which asks for the usage if it is streamed.

    Raises UntranslatableError.
    """
    asked: _Request = _converted(body, _Request)
    _refuse(body)
    chat = {name: value for name, value in body.items() if name not in _KNOWN}
    chat |= _prompt(asked)
    if "max_completion_tokens" not in chat:
        # Most servers know max_tokens; OpenAI's reasoning models accept only max_completion_tokens.
        chat["max_tokens"] = asked.max_tokens
    for name in ("temperature", "top_k", "top_p"):
        if (value := getattr(asked, name)) is not None:
            chat[name] = value
    if asked.stop_sequences:
        chat["stop"] = asked.stop_sequences
    if asked.metadata is not None and asked.metadata.user_id:
        chat["user"] = _short(asked.metadata.user_id)
    if asked.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _short(name: str) -> str:
    """Returns a user id that OpenAI accepts: the hash of an id that is too long."""
    return name if len(name) <= _LONGEST_USER else sha256(name.encode()).hexdigest()


def prompt_of(body: Any) -> Object:
    """Converts the prompt of a count_tokens request to a chat. Raises what `chat_of` raises."""
    asked = _converted(body, _Prompt)
    _refuse(body)
    return _prompt(asked)


def _converted(body: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        message = str(error)
    found = _PATH.search(message)
    param = found[1] if found else None
    value = _VALUE.match(message)
    if param is not None and value is not None and param.endswith((".type", ".role")):
        message = f"`{param}`: `{value[1]}` has no equivalent in the Chat Completions API"
    else:
        message = f"The body of the request is not valid: {message.replace('`$.', '`')}"
    raise UntranslatableError(message, param)


def _refuse(body: Object) -> None:
    for name, reason in _REFUSED.items():
        if body.get(name):
            raise UntranslatableError(f"`{name}` is not supported: {reason}", name)


def _prompt(asked: _Prompt) -> Object:
    """Returns the model, messages, tools and response format of the chat request."""
    chat: Object = {"model": asked.model, "messages": [*_messages(asked)]}
    if asked.tools:
        chat["tools"] = [_function(tool, index) for index, tool in enumerate(asked.tools)]
        chat |= _choice(asked.tool_choice)
    elif isinstance(asked.tool_choice, _Any | _Named):
        raise UntranslatableError(
            "`tool_choice` requires a tool, but `tools` is empty", "tool_choice"
        )
    if asked.output_config is not None and asked.output_config.format is not None:
        schema = {"name": "answer", "schema": asked.output_config.format.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


def _messages(asked: _Prompt) -> Iterator[Object]:
    *earlier, last = asked.messages
    # Only an empty answer at the end means the same as no message.
    for index, message in enumerate(earlier if isinstance(last, _Assistant) else asked.messages):
        if message.content == []:
            where = f"messages[{index}].content"
            raise UntranslatableError(
                f"`{where}` is empty: only a final assistant message may be empty", where
            )
    if asked.system:
        yield {"role": "system", "content": _lines(_blocks(asked.system))}
    # A turn with nothing but thinking is left out, and the turns around it are merged.
    for kind, turn in groupby(filter(_says, asked.messages), type):
        contents = [_blocks(message.content) for message in turn]
        blocks = [block for content in contents for block in content]
        if kind is _User:
            yield from _user(blocks)
        elif kind is _Assistant:
            yield _assistant(contents)
        else:
            yield {"role": "system", "content": _lines(blocks)}


def _says(message: _User | _Assistant | _System) -> bool:
    """Whether the message contains anything besides thinking."""
    blocks = _blocks(message.content)
    return not all(isinstance(block, _Thinking | _RedactedThinking) for block in blocks)


def _blocks(content: str | Sequence[Any] | None) -> Sequence[Any]:
    return [_Text(content)] if isinstance(content, str) else content or ()


def _user(blocks: Sequence[Any]) -> Iterator[Object]:
    """Yields a message for each tool result, and then the message of all other blocks."""
    shown: list[Object] = []
    for block in blocks:
        if isinstance(block, _ToolResult):
            message, media = _tool_message(block)
            shown += media
            yield message
    for block in blocks:
        if not isinstance(block, _ToolResult):
            shown += _parts(block)
    if shown:
        yield {"role": "user", "content": _shortest(shown)}


def _tool_message(result: _ToolResult) -> tuple[Object, list[Object]]:
    """Returns the message of a tool, which holds only text, and the parts that are not text."""
    parts = [part for block in _blocks(result.content) for part in _parts(block)]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    media = [part for part in parts if part["type"] != "text"]
    if media:
        text = text or "The result is in the next message."
        media.insert(0, _text_part(f"Result of the tool call {result.tool_use_id}:"))
    if result.is_error:
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": text}, media


def _assistant(contents: Iterable[Iterable[Any]]) -> Object:
    """Returns the assistant's turn as one message. contents: the blocks of each of its messages."""
    texts: list[str] = []
    calls: list[Object] = []
    for blocks in contents:
        # The text blocks of one message are pieces of one text.
        text = ""
        for block in blocks:
            if isinstance(block, _Text):
                text += block.text
            elif isinstance(block, _ToolUse):
                arguments = msgspec.json.encode(block.input).decode()
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
        if text:
            texts.append(text)
    said = "\n".join(texts)
    if calls:
        return {"role": "assistant", "content": said or None, "tool_calls": calls}
    return {"role": "assistant", "content": said}


def _parts(block: _Shown) -> list[Object]:
    """Returns the parts of a chat message that hold the block's content."""
    if isinstance(block, _Text):
        return [_text_part(block.text)]
    if isinstance(block, _Document):
        return _document(block)
    if isinstance(block, _SearchResult):
        return [_text_part("\n".join([block.title, block.source, _lines(block.content)]))]
    return [{"type": "image_url", "image_url": {"url": block.source.url}}]


def _document(block: _Document) -> list[Object]:
    source, title = block.source, block.title
    about = [text for text in (title, block.context) if text]
    if isinstance(source, _Base64):
        file = {"filename": title or "document.pdf", "file_data": source.url}
        texts = [_text_part(block.context)] if block.context else []
        return [*texts, {"type": "file", "file": file}]
    if isinstance(source, _PlainText):
        return [_text_part("\n".join([*about, source.data]))]
    return [*map(_text_part, about), *(p for one in _blocks(source.content) for p in _parts(one))]


def _text_part(text: str) -> Object:
    return {"type": "text", "text": text}


def _shortest(parts: list[Object]) -> str | list[Object]:
    """Joins the parts into one string if all are text: not every server accepts a list."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _lines(blocks: Iterable[_Text]) -> str:
    return "\n".join(block.text for block in blocks)


def _function(tool: _Tool, index: int) -> Object:
    if tool.type not in (None, "custom"):
        where = f"tools[{index}].type"
        message = f"`{where}`: `{tool.type}` has no equivalent in the Chat Completions API"
        raise UntranslatableError(f"{message}: give the tool an `input_schema` of its own", where)
    if tool.input_schema is None:
        where = f"tools[{index}]"
        message = f"`{where}` has no `input_schema`, which describes the tool's parameters"
        raise UntranslatableError(message, where)
    function: Object = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: _Auto | _Any | _Named | _None | None) -> Object:
    match choice:
        case None:
            return {}
        case _None():
            return {"tool_choice": "none"}
        case _Auto():
            found: Any = "auto"
        case _Any():
            found = "required"
        case _Named(name=name):
            found = {"type": "function", "function": {"name": name}}
    parallel = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    return {"tool_choice": found, **parallel}
