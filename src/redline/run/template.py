"""A row becomes a request."""

from __future__ import annotations

from typing import Any

import jinja2
import msgspec

from redline.calls import Request
from redline.errors import ConfigError, Rejected
from redline.run.settings import Prompting

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"

# Columns of a `messages`, `prompt` or `input` row that belong into its body. Any other column is
# the user's own data and is not sent; `body` takes whatever else an endpoint knows.
_PARAMETERS = """
    model temperature top_p top_k min_p n stop seed max_tokens max_completion_tokens
    max_output_tokens presence_penalty frequency_penalty repetition_penalty logit_bias logprobs
    top_logprobs response_format tools tool_choice parallel_tool_calls user reasoning
    reasoning_effort instructions dimensions encoding_format suffix echo best_of modalities
    prediction service_tier previous_response_id chat_template_kwargs guided_json guided_choice
    guided_regex verbosity
"""
PARAMETERS = frozenset(_PARAMETERS.split())


class Renderer:
    """Turns rows into requests by one `Prompting`. Raises ConfigError for a template in error."""

    def __init__(self, prompting: Prompting) -> None:
        self._prompting = prompting
        self._environment = jinja2.Environment(
            undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
        )
        self._environment.filters["json"] = _to_json
        self._prompt = self._compile(prompting.prompt, "prompt")
        self._system = self._compile(prompting.system, "system")
        self._body = self._compile(prompting.body, "body")
        url = prompting.url
        self._url = self._compile(url, "url") if url is not None and "{" in url else None
        self._output_path = parse_output_path(prompting.output_path)

    def request(self, row: dict[str, Any]) -> Request:
        """The request of one row. Raises Rejected where the row does not fit."""
        if "body" in row and "url" in row and self._prompt is None and self._body is None:
            return self._batch_request(row)
        url = self._prompting.url or CHAT
        if self._url is not None:
            url = self._render(self._url, row, "url")
        method = self._prompting.method.upper()
        return Request(
            method=method,
            url=url,
            body=None if method in ("GET", "HEAD") else self._make_body(row, url),
            output_path=self._output_path,
        )

    def _batch_request(self, row: dict[str, Any]) -> Request:
        url, body, method = row["url"], row["body"], row.get("method") or "POST"
        if not isinstance(url, str) or not isinstance(method, str):
            raise Rejected("`url` and `method` must be text")
        if not isinstance(body, dict):
            raise Rejected("`body` must be an object")
        return Request(
            method=method.upper(),
            url=url,
            body={**self._defaults(), **body},
            output_path=self._output_path,
        )

    def _make_body(self, row: dict[str, Any], url: str) -> Any:
        if self._body is not None:
            return self._body_from_template(row)
        if self._prompt is not None:
            content = self._shape(self._render(self._prompt, row, "prompt"), row, url)
            return {**self._defaults(), **content, **_own_body(row)}
        if self._prompting.url is not None and not _is_model_api(url):
            # A plain endpoint without a template: the row itself is the body.
            own = {name: value for name, value in row.items() if name != "custom_id"}
            return {**self._defaults(), **own}
        parameters = {name: row[name] for name in row if name in PARAMETERS}
        content = self._own_content(row, url)
        return {**self._defaults(), **parameters, **content, **_own_body(row)}

    def _own_content(self, row: dict[str, Any], url: str) -> dict[str, Any]:
        """The body fields of a row that brings `messages`, `prompt` or `input`."""
        if "messages" in row and url.endswith("/chat/completions"):
            messages = row["messages"]
            if not isinstance(messages, list) or not messages:
                raise Rejected("`messages` must be a list of at least one message")
            return {"messages": self._with_system(messages, row)}
        for name in ("prompt", "input", "messages"):
            if name in row and row[name] is not None:
                return self._shape(row[name], row, url)
        raise Rejected(
            "the row has no `messages`, `prompt` or `input`; its columns are: "
            + (", ".join(row) or "none"),
            hint="say how to make a prompt of a row, for instance --prompt 'Classify: {{ text }}'",
        )

    def _shape(self, content: Any, row: dict[str, Any], url: str) -> dict[str, Any]:
        """The prompt in the field that the API of `url` takes it from."""
        if url.endswith("/chat/completions"):
            messages = [{"role": "user", "content": content}]
            return {"messages": self._with_system(messages, row)}
        if url.endswith(("/embeddings", "/responses")):
            return {"input": content}
        return {"prompt": content}

    def _with_system(self, messages: list[Any], row: dict[str, Any]) -> list[Any]:
        if self._system is None:
            return messages
        text = self._render(self._system, row, "system")
        return [{"role": "system", "content": text}, *messages]

    def _defaults(self) -> dict[str, Any]:
        model = self._prompting.model
        return {**({"model": model} if model else {}), **self._prompting.params}

    def _body_from_template(self, row: dict[str, Any]) -> Any:
        assert self._body is not None
        text = self._render(self._body, row, "body")
        try:
            body = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise Rejected(
                f"the body template gives no JSON: {error}",
                hint="write values with the json filter, for instance {{ text | json }}",
            ) from error
        return {**self._defaults(), **body} if isinstance(body, dict) else body

    def _compile(self, text: str | None, name: str) -> jinja2.Template | None:
        if text is None:
            return None
        try:
            return self._environment.from_string(text)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the {name} template is not valid: {error}",
                hint="columns are written as {{ column }}",
            ) from error

    def _render(self, template: jinja2.Template, row: dict[str, Any], name: str) -> str:
        try:
            return template.render(row)
        except jinja2.UndefinedError as error:
            raise Rejected(
                f"the {name} template does not fit the row: {error.message}; "
                f"its columns are: {', '.join(row) or 'none'}"
            ) from error
        except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as error:
            raise Rejected(f"the {name} template fails on the row: {error}") from error


def parse_output_path(text: str | None) -> tuple[str | int, ...]:
    """Keys and indices from `result.items.0.text`; a part of digits is an index."""
    if not text:
        return ()
    parts = text.removeprefix("$").strip(".").split(".")
    if not all(parts):
        raise ConfigError(f"not an output path: {text}", hint="write it like result.items.0.text")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _own_body(row: dict[str, Any]) -> dict[str, Any]:
    body = row.get("body")
    return body if isinstance(body, dict) else {}


def _is_model_api(url: str) -> bool:
    return url.endswith((COMPLETIONS, EMBEDDINGS, RESPONSES, "/completions"))


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
