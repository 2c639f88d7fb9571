"""Renders rows as requests."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from redline.apis import PLAIN, api_of, chat
from redline.calls import Request, check_path, refuse_partial
from redline.errors import BadRow, BadTemplate, ConfigError
from redline.job.settings import BODILESS, Prompting
from redline.job.work.body import FixedBody
from redline.process import listed
from redline.sources import ArrowRows

if TYPE_CHECKING:
    from redline.job.work.jinja_template import Template

# The columns of a row by name, or the fields of a body.
Columns = dict[str, Any]
_SYSTEM_ROLES = ("system", "developer")
# An index in an output path, or a key if the value is an object; a longer number is always a key.
_INDEX = re.compile("0|[1-9][0-9]{0,8}")

# Columns that are copied into the body of a row with `messages`, `prompt` or `input`. Any other
# column is the user's own data and is not sent; further parameters belong in the column `body`.
_PARAMETERS = """
    model temperature top_p top_k min_p n stop seed max_tokens max_completion_tokens
    max_output_tokens presence_penalty frequency_penalty repetition_penalty logit_bias logprobs
    top_logprobs response_format tools tool_choice parallel_tool_calls user reasoning
    reasoning_effort instructions dimensions encoding_format suffix echo best_of modalities
    prediction service_tier previous_response_id chat_template_kwargs guided_json guided_choice
    guided_regex verbosity
"""
PARAMETERS = frozenset(_PARAMETERS.split())
_SENT = PARAMETERS.union(("messages", "prompt", "input", "body"))


class Renderer:
    """Renders rows as requests, according to a `Prompting`.

    Raises ConfigError for an invalid template, or for settings that cannot be combined.
    """

    def __init__(self, prompting: Prompting) -> None:
        self._prompt = _compiled(prompting.prompt, "prompt")
        self._system = _compiled(prompting.system, "system")
        self._body = _compiled(prompting.body, "body")
        self._has_template = self._prompt is not None or self._body is not None
        url = self._fixed_url = prompting.url or chat.API.path
        self._url = _compiled(url, "url") if "{{" in url or "{%" in url else None
        self._method = prompting.method.upper()
        self._is_bodiless = self._method in BODILESS
        if self._system is not None and self._url is None and not api_of(url).has_system:
            raise ConfigError(
                f"a request to {url} has no place for a system message",
                hint="put its text into --prompt, or write the whole body with --body",
            )
        self._output_path = parse_output_path(prompting.output_path)
        model = {"model": prompting.model} if prompting.model else {}
        self._defaults = {**model, **prompting.params}
        self._shots = [
            {"role": role, "content": content}
            for shot in prompting.shots
            for role, content in zip(("user", "assistant"), shot, strict=True)
        ]
        if not prompting.constant_prompt:
            self._check_columns()
        self._fixed = self._fixed_body()
        # The fields that all requests made from the fixed body share.
        self._alike = Request(method=self._method, url=url, output_path=self._output_path)

    def request(self, row: Columns) -> Request:
        """Returns the request for a row.

        Raises BadRow if no valid request can be made, BadTemplate if a template fails on the row.
        """
        fixed = self._fixed
        if fixed is not None and (raw := fixed.json(row)) is not None:
            return self._alike.carrying(raw, fixed.asked)
        if not self._has_template and _is_batch_row(row):
            request = self._batch_request(row)
        else:
            url = self._fixed_url if self._url is None else self._url.render(row)
            body = None if self._is_bodiless else self._make_body(row, url)
            request = self._request(self._method, url, body)
        if request.url is not self._fixed_url:
            _check_own(request.url)
        refuse_partial(request)
        if not self._has_template and row.get("stream") is True:
            refuse_partial(msgspec.structs.replace(request, body={"stream": True}))
        return request

    def _fixed_body(self) -> FixedBody | None:
        """Returns the body as JSON with gaps for a row's texts; None if more depends on the row."""
        if self._url is not None or self._body is not None or self._is_bodiless:
            return None
        columns, others = set(), {"body"}
        for template in (self._prompt, self._system):
            if template is not None:
                if template.plain is None:
                    return None
                columns.update(template.plain.columns)
                others |= template.plain.others
        kinds: Collection[type] = (str,)
        if self._prompt is not None:
            from redline.job.work.jinja_template import PRINTED_AS_STR

            kinds = PRINTED_AS_STR
        elif api_of(self._fixed_url) is PLAIN:
            return None
        else:
            columns.add("prompt")
            others |= PARAMETERS.union(("messages", "stream"))

        def make(row: Columns) -> Any:
            body = self._make_body(row, self._fixed_url)
            refuse_partial(Request(url=self._fixed_url, body=body))
            return body

        try:
            return FixedBody(make, columns, kinds=kinds, others=others)
        except ValueError:
            return None

    def prompt(self, row: Columns) -> str:
        """Renders the prompt template for a row. Raises BadTemplate if that fails."""
        assert self._prompt is not None
        return self._prompt.render(row)

    def _batch_request(self, row: Columns) -> Request:
        url, body, method = row["url"], self._sent(row).get("body"), row.get("method") or "POST"
        if not isinstance(url, str) or not isinstance(method, str):
            raise BadRow("`url` and `method` must be text")
        method = method.upper()
        if body is None and method in BODILESS:
            return self._request(method, url)
        if not isinstance(body, dict):
            raise BadRow("`body` must be an object")
        body = {**self._defaults, **body}
        if api_of(url).has_system:
            body = self._with_system(body, row, url)
        return self._request(method, url, body)

    def _request(self, method: str, url: str, body: Any = None) -> Request:
        return Request(method=method, url=url, body=body, output_path=self._output_path)

    def _make_body(self, row: Columns, url: str) -> Any:
        if self._body is not None:
            return self._body_from(self._body, row)
        sent = self._sent(row)
        if self._prompt is not None:
            content = self._with_system(self._shape(self._prompt.render(row), url), row, url)
            return {**self._defaults, **content, **_own_body(sent)}
        if api_of(url) is PLAIN:
            # A plain endpoint without a template: the row itself is the body.
            own = {name: value for name, value in sent.items() if name != "custom_id"}
            return {**self._defaults, **own}
        content = {name: sent[name] for name in sent if name in PARAMETERS}
        content.update(self._own_content(sent, url))
        return {**self._defaults, **self._with_system(content, row, url), **_own_body(sent)}

    def _sent(self, row: Columns) -> Columns:
        """Returns the row with its values as they are sent; templates get the row itself."""
        return row

    def _own_content(self, row: Columns, url: str) -> Columns:
        """Returns the body fields of a row with `messages`, `prompt` or `input`."""
        api = api_of(url)
        if row.get("messages") is not None and api.has_system:
            messages = row["messages"]
            if not isinstance(messages, list) or not messages:
                raise BadRow("`messages` must be a list of at least one message")
            return {api.prompt: messages}
        for name in ("prompt", "input"):
            if row.get(name) is not None:
                return self._shape(row[name], url)
        if row.get("messages") is not None:
            raise BadRow(
                f"the row has `messages`, which {url} does not take",
                hint="give it a `prompt` or `input`, or make one with --prompt",
            )
        raise BadRow(
            f"the row has no `messages`, `prompt` or `input`; the row's columns are: {listed(row)}",
            hint="pass --prompt to turn a row into a prompt, for example "
            "--prompt 'Classify: {{ text }}'",
        )

    def _shape(self, content: Any, url: str) -> Columns:
        """Returns the body fields that hold the prompt, as the API of `url` expects them."""
        api = api_of(url)
        if api is chat.API:
            return {api.prompt: [*self._shots, {"role": "user", "content": content}]}
        return {api.prompt: content}

    def _with_system(self, body: Columns, row: Columns, url: str) -> Columns:
        """Returns the body with the system message added, unless the body already has one."""
        if self._system is None:
            return body
        api = api_of(url)
        if not api.has_system:
            raise BadRow(f"a request to {url} has no place for a system message")
        messages = body.get(api.prompt)
        if isinstance(messages, list) and any(map(_is_system, messages)):
            return body
        if api is not chat.API:
            has_own = body.get("instructions") is not None
            return body if has_own else {**body, "instructions": self._system.render(row)}
        system = {"role": "system", "content": self._system.render(row)}
        return {**body, api.prompt: [system, *messages]} if isinstance(messages, list) else body

    def _body_from(self, template: Template, row: Columns) -> Any:
        try:
            body = msgspec.json.decode(template.render(row))
        except msgspec.DecodeError as error:
            raise BadTemplate(
                f"the body template does not produce JSON: {error}",
                hint="write values with the json filter, for example {{ text | json }}",
            ) from error
        return {**self._defaults, **body} if isinstance(body, dict) else body

    def _check_columns(self) -> None:
        """Raises ConfigError for a prompt that would be the same for every row."""
        main = self._prompt or self._body
        if main is None or main.columns:
            return
        others = [made for made in (self._system, self._url) if made is not None]
        if main.braced is None and any(made.columns for made in others):
            return
        name = "prompt" if main is self._prompt else "body template"
        meant = "write columns as {{ column }}."
        if main.braced is not None:
            meant = f"did you mean {{{{ {main.braced} }}}}?"
        raise ConfigError(
            f"the {name} uses no column, so every row would send the same request",
            hint=f"{meant} If every row is meant to send the same request, add "
            "--constant-prompt (constant_prompt=True in Python)",
        )


class _ArrowRenderer(Renderer):
    """Renders rows of Parquet files and dataset folders; sends no object keys whose value is null.

    All objects in a column have the same keys there, so a key that only one message needs is null
    in all others, and some servers refuse a message with `tool_calls: null`.
    """

    def _sent(self, row: Columns) -> Columns:
        return {name: _known(value) if name in _SENT else value for name, value in row.items()}


def renderer_of(prompting: Prompting, source: object) -> Renderer:
    """Returns the renderer of a source's rows. Raises ConfigError as `Renderer` does."""
    return (_ArrowRenderer if isinstance(source, ArrowRows) else Renderer)(prompting)


def _known(value: Any) -> Any:
    """Returns the value without those keys of objects whose value is null.

    The `content` of a message stays even if it is null, because some servers require it.
    """
    if isinstance(value, list):
        return list(map(_known, value))
    if not isinstance(value, dict):
        return value
    kept = "content" if value.get("role") else None
    return {key: _known(of) for key, of in value.items() if of is not None or key == kept}


def _compiled(text: str | None, name: str) -> Template | None:
    if text is None:
        return None
    # Imported here: rows with their own messages do not need it.
    from redline.job.work.jinja_template import Template

    return Template(text, name)


def parse_output_path(text: str | None) -> tuple[str | int, ...]:
    """Splits a path such as `result.items.0.text` into keys and indices.

    A number of up to nine digits is an index, or a key in an object. Raises ConfigError if a part
    is empty.
    """
    if not text:
        return ()
    parts = text.removeprefix("$").strip(".").split(".")
    if not all(parts):
        raise ConfigError(f"invalid output path: {text}", hint="for example result.items.0.text")
    return tuple(int(part) if _INDEX.fullmatch(part) else part for part in parts)


def _is_batch_row(row: Columns) -> bool:
    """Whether the row is a whole request, as in a file for the OpenAI Batch API."""
    if "url" not in row or any(name in row for name in ("messages", "prompt", "input")):
        return False
    return "body" in row or str(row.get("method", "")).upper() in BODILESS


def _check_own(url: str) -> None:
    """Raises BadRow if a row's `url` is not a path; such a row would make its whole batch fail."""
    try:
        check_path(url)
    except ConfigError as error:
        raise BadRow(error.what, hint=error.hint) from error


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in _SYSTEM_ROLES


def _own_body(row: Columns) -> Columns:
    body = row.get("body")
    return body if isinstance(body, dict) else {}
