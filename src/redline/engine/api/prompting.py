"""Parses requests in OpenAI's formats into token ids and sampling parameters.

A request with an unsupported parameter is rejected, with the parameter's name, before anything is
computed, unless the parameter's value has no effect. A null parameter counts as not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from redline.apis import ChoicesRequest, ResponseFormat, api_of, chat, completions
from redline.engine.sample import SamplingParams
from redline.errors import Rejected, nearest

_MOST_PROMPTS = 2048
# The default max_tokens of /v1/completions at OpenAI and in vLLM. A chat has no default.
_COMPLETION_TOKENS = 16
_SHORTEN = "shorten it, or start the engine with a larger max_model_len"
_ONLY_TEXT = "the local engine reads only text, in the roles system, developer, user and assistant"
# This occurs in transformers' error about a tokenizer without a chat template.
_NO_TEMPLATE = "chat_template is not set"
# OpenAI's parameters that the engine does not support, each with the accepted values: those that
# have no effect.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
# Parameters that do not change the answer: they are for billing, storage and tool calls, which the
# engine does not have.
_IGNORED = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# Every field of SamplingParams is a parameter of the same name; `logprobs` has two meanings.
_SAMPLING = {field.name for field in msgspec.structs.fields(SamplingParams)} - {"logprobs"}


class _Part(Struct):
    type: Literal["text"]
    text: str


class _Message(Struct, omit_defaults=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]
    name: str | None = None


class _Shared(ChoicesRequest, kw_only=True):
    model: str = ""
    priority: int = 0  # lower comes first


class _Chat(_Shared, kw_only=True):
    is_chat: ClassVar = True
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class _Completion(_Shared, kw_only=True):
    is_chat: ClassVar = False
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None


class Asked(NamedTuple):
    """One request, parsed and checked.

    form: the other parameters. prompts: the token ids of each prompt. params: as requested;
    max_tokens is None if it was not given. schema: the JSON schema that the answers must follow;
    None for free text. max_model_len: the most tokens of a prompt and its answer together.
    """

    form: _Chat | _Completion
    prompts: list[list[int]]
    params: SamplingParams
    schema: dict[str, Any] | None
    max_model_len: int

    def most_tokens(self, prompt: list[int]) -> int:
        """Returns the maximum number of tokens of prompt and answer together.

        Without max_tokens, a chat may use all tokens that fit, and a completion 16.
        """
        asked = self.params.max_tokens
        if asked is None and self.form.is_chat:
            return self.max_model_len
        most = len(prompt) + (_COMPLETION_TOKENS if asked is None else asked)
        return min(most, self.max_model_len)


def read_request(
    url: str, body: Any, tokenizer: Any, vocabulary: int, max_model_len: int, token_bytes: int
) -> Asked:
    """Returns the request, parsed and checked.

    tokenizer: a transformers tokenizer. vocabulary: the number of token ids. max_model_len: the
    maximum number of tokens of a prompt and its answer together. token_bytes: the size of the
    longest token in bytes; a text of more than max_model_len * token_bytes bytes is rejected before
    it is tokenized. Raises Rejected; if a parameter is at fault, the message names it.
    """
    api = api_of(url)
    if api not in (chat.API, completions.API):
        path = url.partition("?")[0].rstrip("/")
        hint = f"it serves {chat.API.path} and {completions.API.path}"
        raise Rejected(f"the engine does not serve {path or '/'}", hint=hint, status=404)
    if not isinstance(body, Mapping):
        raise Rejected("the body is not a JSON object")
    kind: type[_Chat | _Completion] = _Chat if api is chat.API else _Completion
    fields = _fields(body, {*kind.__struct_fields__, *_SAMPLING})
    form = _typed(fields, kind)
    params = _params(fields, form)
    params.check(vocabulary)
    if isinstance(form, _Chat):
        given: dict[str, Any] = {"messages": _chat_text(form.messages, tokenizer)}
    else:
        given = _named(form.prompt)
    prompts = []
    for name, prompt in given.items():
        if isinstance(prompt, str):
            _check_bytes(name, prompt, max_model_len, token_bytes)
            # A chat's template writes the special tokens, so they must not be added again.
            prompt = tokenizer.encode(prompt, add_special_tokens=not form.is_chat)
        _check(name, prompt, vocabulary, params.max_tokens, max_model_len)
        prompts.append(prompt)
    return Asked(form, prompts, params, _schema(form.response_format), max_model_len)


def _fields(body: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Returns the parameters that have an effect. Raises Rejected for an unsupported one."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in _IGNORED:
            continue
        if name in known:
            fields[name] = value
        elif name not in _UNSUPPORTED:
            raise Rejected(f"unknown parameter `{name}`", hint=nearest(str(name), known))
        elif value not in _UNSUPPORTED[name] and not (
            name == "best_of" and value == body.get("n")  # the best n of n are all of them
        ):
            what = f"`{name}` is not supported by the local engine"
            raise Rejected(what, hint="leave it out")
    return fields


_Shape = TypeVar("_Shape")


def _typed(value: Any, kind: type[_Shape], where: str = "", hint: str = "") -> _Shape:
    """Converts the value to the type `kind`. Raises Rejected if it is not valid.

    where: the value's name in the request. hint: the error's hint.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        # Such as "Expected `int`, got `str` - at `$.max_tokens`".
        what, _, path = str(error).partition(" - at ")
        name = where + path.rpartition("$")[2].strip("`.")
        raise Rejected(f"`{name}` is not valid: {what}" if name else what, hint=hint) from None


def _params(fields: dict[str, Any], form: _Chat | _Completion) -> SamplingParams:
    given = {name: value for name, value in fields.items() if name in _SAMPLING}
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    if isinstance(form, _Completion):
        given["logprobs"] = form.logprobs
    else:
        if form.top_logprobs is not None and not form.logprobs:
            what = "`top_logprobs` is given without `logprobs`"
            raise Rejected(what, hint="set `logprobs` to true")
        given["logprobs"] = (form.top_logprobs or 0) if form.logprobs else None
        if form.max_completion_tokens is not None:
            if "max_tokens" in given:
                what = "both `max_tokens` and `max_completion_tokens` are given"
                raise Rejected(what, hint="keep one")
            given["max_tokens"] = form.max_completion_tokens
    return _typed(given, SamplingParams)


def _schema(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None:
        raise Rejected("`response_format.json_schema` is missing")
    if wanted.json_schema.schema is None:
        raise Rejected("`response_format.json_schema` has no `schema`")
    return wanted.json_schema.schema


def _chat_text(messages: list[dict[str, Any]], tokenizer: Any) -> str:
    """Renders the conversation with the model's chat template.

    Raises Rejected if the messages do not fit the template, or if the model has none.
    """
    if not messages:
        raise Rejected("`messages` is empty")
    # Answers that clients send back as messages have empty fields for tools.
    stated = [
        {name: value for name, value in message.items() if value is not None and value != []}
        for message in messages
    ]
    plain = []
    for message in _typed(stated, list[_Message], "messages", _ONLY_TEXT):
        if message.role == "developer":
            # Chat templates do not know `developer`, OpenAI's newer name for `system`.
            message.role = "system"
        if isinstance(message.content, list):
            message.content = "".join(part.text for part in message.content)
        plain.append(msgspec.to_builtins(message))
    try:
        ways = {"tokenize": False, "add_generation_prompt": True}
        return str(tokenizer.apply_chat_template(plain, **ways))
    except Exception as error:
        # A template is code that comes with the model and may raise any error: TemplateError, for
        # example, if roles do not alternate.
        if _NO_TEMPLATE in str(error):
            raise Rejected("the model has no chat template", hint="use /v1/completions") from None
        what = f"`messages` do not fit the model's chat template: {error}".partition("\n")[0]
        raise Rejected(what) from None


def _named(given: str | list[Any]) -> dict[str, Any]:
    """Returns each prompt, a text or token ids, by its name in the request.

    Raises Rejected for no prompt, for too many, and for a mixture of token ids and prompts.
    """
    if isinstance(given, str) or (given and all(isinstance(item, int) for item in given)):
        return {"prompt": given}
    named = {f"prompt[{place}]": item for place, item in enumerate(given)}
    if not 0 < len(named) <= _MOST_PROMPTS:
        raise Rejected(f"`prompt` has {len(named):,} items; it must have 1 to {_MOST_PROMPTS:,}")
    if any(isinstance(item, int) for item in given):
        raise Rejected("`prompt` mixes token ids with prompts")
    return named


def _check_bytes(name: str, text: str, max_model_len: int, token_bytes: int) -> None:
    """Raises Rejected if `text` has a lone surrogate, or too many bytes for its tokens to fit."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Rejected(f"`{name}` contains a lone surrogate, which is not valid text") from None
    most = max_model_len * token_bytes
    if size > most:
        what = f"`{name}` has {size:,} bytes, but max_model_len ({max_model_len:,} tokens) allows"
        raise Rejected(f"{what} at most {most:,}", hint=_SHORTEN)


def _check(
    name: str, prompt: list[int], vocabulary: int, wanted: int | None, max_model_len: int
) -> None:
    """Raises Rejected if the model cannot read the prompt, or if the answer does not fit.

    wanted: the request's max_tokens.
    """
    size = len(prompt)
    if not prompt:
        raise Rejected(f"`{name}` is empty: there is no token to continue from")
    if not 0 <= min(prompt) <= max(prompt) < vocabulary:
        wrong = next(token for token in prompt if not 0 <= token < vocabulary)
        what = f"`{name}` contains the token id {wrong}"
        raise Rejected(f"{what}; the model's token ids are 0 to {vocabulary - 1}")
    if size > max_model_len - 1:
        what = f"`{name}` has {size:,} tokens, but max_model_len allows at most"
        raise Rejected(f"{what} {max_model_len - 1:,}", hint=_SHORTEN)
    if wanted is not None and size + wanted > max_model_len:
        what = f"`{name}` has {size:,} tokens and `max_tokens` is {wanted:,}"
        raise Rejected(
            f"{what}, together more than max_model_len, {max_model_len:,}", hint=_SHORTEN
        )
