"""Recognizes errors by a provider's code or text if their status alone would mislead.

A comment above each row of the table names its provider and source. The first matching row takes
precedence over the status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from redline.apis.errors.error_object import ErrorBody, read_error
from redline.errors import (
    BadReply,
    CallError,
    OverLimit,
    RateLimited,
    Refused,
    Rejected,
    ServerFailed,
    Unpaid,
)


class Meaning(NamedTuple):
    """The meaning of an error: its class, the beginning of its message, and what to do about it."""

    error: type[CallError]
    what: str
    hint: str = ""


class _Row(NamedTuple):
    """One error of one provider.

    statuses: the HTTP statuses that the error may have. code: a pattern that one of the error's
    codes or types must match in full; None for any. text: a pattern that the beginning of its
    message must match, ignoring case; None for any. The groups of `text`, if any, are a limit and a
    requested amount, which must exceed that limit. A row for status 400 with a `text` also needs a
    `code`, since the message may quote a row of the user's data.
    """

    statuses: tuple[int, ...]
    code: str | None
    text: str | None
    meaning: Meaning


_AGAIN = "then run the same command again"
_REFUSED = Meaning(
    Refused,
    "the endpoint refused the key",
    f"set OPENAI_API_KEY or --api-key-env, or in Python api_key, {_AGAIN}",
)
_NO_CREDIT = Meaning(
    Unpaid, "the account has no credit left", f"add credit or use another key, {_AGAIN}"
)
_SPENT = Meaning(
    Unpaid, "a spend limit is reached", f"raise it at the provider or use another key, {_AGAIN}"
)
_OVER = Meaning(RateLimited, "over the rate limit")
_FAILED = Meaning(ServerFailed, "the server failed")
_INVALID = Meaning(BadReply, "the model's answer does not have the requested format")
_TOO_LARGE = Meaning(
    OverLimit,
    "the request is larger than the provider's limit",
    "shorten this row's prompt, lower max_tokens, or have the limit raised",
)
_NO_MODEL = Meaning(
    Rejected, "the endpoint rejected the request", "check that the key may use this model"
)
_UNKNOWN_MODEL = Meaning(
    Rejected, "the endpoint rejected the request", "check the model: the endpoint does not have it"
)
WAIT = Meaning(RateLimited, "the provider asks redline to wait")

_TABLE = (
    # DashScope: a limit of tokens per minute, with the code that OpenAI uses for an empty account.
    # https://www.alibabacloud.com/help/en/model-studio/rate-limit
    _Row(
        (429,),
        "insufficient_quota|throttling.*",
        r"(?s:.*#token-limit)|(?!free )(?s:.{0,80})allocated quota exceeded",
        _OVER,
    ),
    # DashScope: https://www.alibabacloud.com/help/en/model-studio/error-code
    # Volcengine: https://github.com/coze-dev/coze-studio/issues/2195
    _Row((400, 403), "arrearage|accountoverdueerror", None, _NO_CREDIT),
    # Anthropic: https://github.com/anthropics/anthropic-sdk-typescript/issues/618
    _Row(
        (400, 403),
        "invalid_request_error|billing_error",
        r"[\w' ]{0,40}credit balance is too low",
        _NO_CREDIT,
    ),
    # Anthropic: https://platform.claude.com/docs/en/api/errors
    _Row(
        (400, 403, 429),
        "invalid_request_error|billing_error|rate_limit_error",
        r"you have reached your specified [\w ]{0,20}api usage limits",
        _SPENT,
    ),
    _Row((429,), "enforced_spend_limit_reached", None, _SPENT),
    # OpenAI: https://help.openai.com/en/articles/5955604
    _Row((400, 403, 429), "credit_balance_exhausted", None, _NO_CREDIT),
    _Row(
        (400, 403, 429),
        r"\w+_(?:spend|usage)_limit_exceeded|billing_hard_limit_reached",
        None,
        _SPENT,
    ),
    # OpenAI: https://developers.openai.com/api/docs/guides/error-codes
    _Row((429,), "insufficient_quota|billing_not_active", None, _NO_CREDIT),
    # OpenAI: https://github.com/Aider-AI/aider/issues/1880
    # Groq, as 413: https://github.com/continuedev/continue/issues/10218
    # The code is that of the rate limit, but the request alone is larger than the limit.
    _Row(
        (413, 429),
        None,
        r"(?s:request too large\b.{0,300}?limit:? (\d{1,15}).{0,80}?requested:? (\d{1,15}))",
        _TOO_LARGE,
    ),
    # OpenRouter: https://openrouter.ai/docs/api_reference/limits
    # Calls in flight have reserved the rest of the credit; they release what they do not use.
    _Row((402,), "openrouter_in_flight_budget|in_flight_budget_exhausted", None, WAIT),
    _Row((403,), "openrouter_(?:guardrail_budget|workspace_budget|key_limit)", None, _SPENT),
    # OpenRouter, the same error without `limit_source`: https://github.com/gptme/gptme/issues/1449
    _Row((403,), None, r"key limit exceeded\b", _SPENT),
    # OpenRouter: https://github.com/langchain-ai/openwiki/pull/864
    # https://github.com/elizaOS/eliza/issues/20331
    # Temporary errors: a 404 only if OpenRouter does not quote the error of the model's provider.
    _Row((404,), "404", r"provider returned error$", _FAILED),
    _Row((400,), "400", r"no models provided\b", _FAILED),
    # Groq: https://console.groq.com/docs/spend-limits
    _Row((400, 403), "blocked_api_access", None, _SPENT),
    # Groq: https://github.com/drnic/groq-ruby/issues/12
    # The same request often succeeds the next time.
    _Row((400,), "json_validate_failed|tool_use_failed|output_parse_failed", None, _INVALID),
    # Groq: https://console.groq.com/docs/flex-processing
    _Row((498,), "capacity_exceeded", None, WAIT),
    # Fireworks: https://github.com/pollinations/pollinations/issues/12136
    _Row((412,), "precondition_failed", r"account \S{1,200} is suspended\b", _SPENT),
    # LiteLLM: https://github.com/BerriAI/litellm/issues/14144
    # The budget of one model, tag or end user has the same type, but the key works for others.
    _Row(
        (400, 429),
        "budget_exceeded",
        r"budget has been exceeded(?!! tag=)|exceededbudget: (?!end user)",
        _SPENT,
    ),
    # new-api: https://github.com/popjane/free_chatgpt_api/issues/26
    _Row((403,), "insufficient_user_quota", None, _NO_CREDIT),
    # Z.ai: https://github.com/zai-org/GLM-5/issues/148
    _Row((429,), "1113", None, _NO_CREDIT),
    # Moonshot: https://forum.moonshot.ai/t/429-insufficient-balance/244
    _Row((403, 429), "exceeded_current_quota_error", None, _NO_CREDIT),
    # Gemini: https://ai.google.dev/gemini-api/docs/billing
    _Row((429,), "resource_exhausted", r"your prepayment credits are depleted", _NO_CREDIT),
    _Row((429,), "resource_exhausted", r"your project has exceeded its monthly spending", _SPENT),
    # Cohere: https://docs.cohere.com/docs/rate-limits
    _Row(
        (429,),
        None,
        r"you are using a trial key, which is limited to \d+ api calls / month",
        _SPENT,
    ),
    # xAI: https://github.com/continuedev/continue/issues/10373
    _Row(
        (403, 429),
        None,
        r"your [\w -]{0,60}has either used all available credits or reached its monthly spending",
        _SPENT,
    ),
    # xAI: https://github.com/hotovo/aider-desk/issues/653
    _Row(
        (400,),
        "client specified an invalid argument",
        r"incorrect(?: |%20)api(?: |%20)key provided",
        _REFUSED,
    ),
    # LiteLLM: https://github.com/winfunc/opcode/issues/358
    # Newer versions send 403. The key is valid for other models.
    _Row((401,), r"\w+_model_access_denied", None, _NO_MODEL),
    # Anthropic: https://github.com/anthropics/claude-code/issues/72457
    _Row(
        (400, 403),
        "invalid_request_error|permission_error",
        r"this organization has been disabled",
        _REFUSED,
    ),
    # Groq: https://github.com/songquanpeng/one-api/issues/1764
    _Row((400,), "organization_restricted", None, _REFUSED),
    # Gemini: https://github.com/googleapis/python-genai/issues/1764
    # https://github.com/poenl/gemini-api/issues/8
    _Row(
        (403,),
        "permission_denied",
        r"your api key was reported as leaked|your project has been denied access",
        _REFUSED,
    ),
    # OpenAI's and Anthropic's codes, which other providers send with a status other than 401.
    _Row((400, 403), "invalid_api_key|authentication_error", None, _REFUSED),
    # OpenAI's code with another status: https://github.com/skorokithakis/sysaidmin/issues/9
    # Mistral: https://github.com/mistralai/mistral-vibe/issues/617
    _Row((400,), "model_not_found|invalid_model", None, _UNKNOWN_MODEL),
    # DeepSeek: https://github.com/langbot-app/LangBot/issues/1643
    _Row((400,), "invalid_request_error", r"model not exist$", _UNKNOWN_MODEL),
    # OpenRouter: https://github.com/OpenRouterTeam/openrouter-examples/issues/74
    _Row((400,), "400", r"\S{1,200} is not a valid model id$", _UNKNOWN_MODEL),
    # LiteLLM: https://github.com/BerriAI/litellm/issues/8821
    _Row(
        (400,),
        "400",
        r"(?:\{'error': ')?[\w/]{1,40}: invalid model name passed in",
        _UNKNOWN_MODEL,
    ),
    # Gemini: https://docs.cloud.google.com/docs/authentication/api-keys-use
    _Row((400,), "api_key_invalid", None, _REFUSED),
)
_BY_STATUS = {401: _REFUSED, 402: _NO_CREDIT, 429: _OVER}
# The message of a gateway that quotes a body after text of its own:
# `litellm.X: YException - b'{...}'`.
_QUOTED_BODY = re.compile(r"""(?:[\w.: ]{0,120} - )?b?['"]?([\[{].*[\]}])['"]?""", re.DOTALL)
_DEEPEST = 3


def meaning_of(status: int, said: ErrorBody) -> Meaning | None:
    """Returns what a status and a body mean together, or the status alone; None if unknown."""
    for each in _and_quoted(said):
        for row in _TABLE:
            if status in row.statuses and _fits(row, each):
                return row.meaning
    return _BY_STATUS.get(status)


def lacks_model(error: CallError) -> bool:
    """Returns whether an endpoint rejected a request with 400 because it lacks the model."""
    return error.status == 400 and meaning_of(400, read_error(error.body)) is _UNKNOWN_MODEL


def _fits(row: _Row, said: ErrorBody) -> bool:
    if row.code is not None and not any(re.fullmatch(row.code, code) for code in said.codes):
        return False
    if row.text is None:
        return True
    found = re.match(row.text, said.message.strip(), re.IGNORECASE)
    if found is None or not found.groups():
        return found is not None
    limit, asked = map(int, found.groups())
    return asked > limit


def _and_quoted(said: ErrorBody) -> Iterator[ErrorBody]:
    """Yields the error, then the error that its message quotes, and so on; at most three in all."""
    for _ in range(_DEEPEST):
        yield said
        found = _QUOTED_BODY.fullmatch(said.message.strip())
        if found is None:
            return
        inner = read_error(found[1].encode())
        said = ErrorBody(inner.message, said.codes | inner.codes)
