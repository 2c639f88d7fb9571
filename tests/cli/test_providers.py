"""What providers answer in their own way, through the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.scripted import Answer, Asked, completion, scripted

Cli = Callable[..., Any]
Rows = Callable[..., str]


def error(message: str | dict[str, str], **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


TOO_LOW = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
    "upgrade or purchase credits."
)
LIMITS = "You have reached your specified API usage limits. You will regain access on 2026-12-01."
WORKSPACE = "You have reached your specified workspace API usage limits."
ANTHROPIC = {"type": "invalid_request_error"}
CAP = {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}
QUOTED = 'litellm.BadRequestError: AnthropicException - {"type":"error","error":' + json.dumps(
    {"message": TOO_LOW, **ANTHROPIC}
)
TEAM = (
    "Your team 16f2151a-40f4-4a80 has either used all available credits or reached its monthly "
    "spending limit."
)
DEPLETED = "Your prepayment credits are depleted. Please go to AI Studio."
CAPPED = "Your project has exceeded its monthly spending cap."
TRIAL = "You are using a Trial key, which is limited to"
SUSPENDED = "Account a is suspended, possibly due to reaching the monthly spending limit"
OVER = "Budget has been exceeded!"
BUDGET = {"type": "budget_exceeded", "code": "400"}

UNPAID = {
    "anthropic, no credit": (400, {"type": "error", **error(TOO_LOW, **ANTHROPIC)}),
    "anthropic, own limit": (400, {"type": "error", **error(LIMITS, **ANTHROPIC)}),
    "anthropic, workspace": (400, {"type": "error", **error(WORKSPACE, **ANTHROPIC)}),
    "anthropic, tier": (429, {"type": "error", **error("You have reached your limits", **CAP)}),
    "anthropic, by litellm": (400, error(QUOTED + "}", type=None, code="400")),
    "openai, no credit": (429, error("m", type="server_error", code="credit_balance_exhausted")),
    "openai, project": (429, error("m", type=None, code="project_spend_limit_exceeded")),
    "openai, organization": (
        429,
        error("m", type="requests", code="organization_spend_limit_exceeded"),
    ),
    "openai, usage": (429, error("m", code="organization_usage_limit_exceeded")),
    "openrouter": (402, error("m", code=402, metadata={"limit_source": "openrouter_credits"})),
    "openrouter, workspace": (
        403,
        error("m", code=403, metadata={"limit_source": "openrouter_workspace_budget"}),
    ),
    "moonshot": (429, error("m", type="exceeded_current_quota_error")),
    "xai": (403, {"code": "permission-denied", "error": TEAM}),
    "dashscope": (400, error("Access denied", type="Arrearage", code="Arrearage")),
    "volcengine": (403, {"code": "AccountOverdueError", "message": "m", "type": "Forbidden"}),
    "openrouter, key": (403, error("Key limit exceeded (monthly limit). Manage it", code=403)),
    "groq": (400, error("m", type="invalid_request_error", code="blocked_api_access")),
    "fireworks": (412, error(SUSPENDED, type="error", code="PRECONDITION_FAILED")),
    "litellm, key": (400, error(f"{OVER} Current cost: 2.6, Max budget: 1.0", **BUDGET)),
    "litellm, user": (429, error("ExceededBudget: User=u over budget.", **BUDGET)),
    "new-api": (403, error("user quota is not enough", code="insufficient_user_quota")),
    "gemini, credit": (429, [error(DEPLETED, code=429, status="RESOURCE_EXHAUSTED")]),
    "gemini, cap": (429, [error(CAPPED, code=429, status="RESOURCE_EXHAUSTED")]),
    "cohere": (429, {"message": f"{TRIAL} 1000 API calls / month. You can continue to use"}),
    "z.ai": (429, error("Insufficient balance or no resource package.", code="1113")),
}


@pytest.mark.parametrize("name", UNPAID)
def test_an_account_that_cannot_pay_leaves_its_rows_unfinished(
    cli: Cli, rows: Rows, name: str
) -> None:
    status, body = UNPAID[name]
    given = rows(*({"prompt": str(number)} for number in range(200)))
    with scripted(lambda _: Answer(status, body, {"x-should-retry": "true"})) as server:
        where = ("--base-url", f"{server.url}/v1", "--max-retries", "0", "-c", "2")
        told = cli("run", given, *where, "--log", "json", "-o", "out.jsonl")
    summary = json.loads(told.err.splitlines()[-1])
    assert told.status == 2
    assert summary["stopped"]["kind"] == "unpaid"
    assert summary["stopped"]["hint"].endswith("then run the same command again")
    assert (summary["succeeded"], summary["failed"]) == (0, 0)
    assert not Path("out.failed.jsonl").exists()
    assert len(server.asked) < 20


WAITS = {
    "dashscope, limit of tokens": (
        429,
        error(
            "You exceeded your current quota, please check your plan and billing details. For "
            "details, see: https://help.aliyun.com/zh/model-studio/error-code#token-limit",
            type="insufficient_quota",
            code="insufficient_quota",
        ),
        {"retry-after-ms": "1"},
    ),
    "dashscope, allocated": (
        429,
        error("Allocated quota exceeded, try again later.", code="insufficient_quota"),
        {"retry-after-ms": "1"},
    ),
    "openrouter, in flight": (
        402,
        error("m", code=402, metadata={"limit_source": "openrouter_in_flight_budget"}),
        {"Retry-After": "0.01"},
    ),
    "groq, flex": (498, error("m", code="capacity_exceeded"), {}),
    "azure, quota": (
        403,
        {"statusCode": 403, "message": "Out of call volume quota."},
        {"Retry-After": "0.01"},
    ),
    "openrouter, header alone": (402, error("m", code=402), {"Retry-After": "0.01"}),
    "cohere, minute": (429, {"message": f"{TRIAL} 20 API calls / minute."}, {}),
    "gemini": (
        429,
        [error("Resource has been exhausted", code=429, status="RESOURCE_EXHAUSTED")],
        {"retry-after-ms": "1"},
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_provider_that_asks_to_wait_is_asked_again(cli: Cli, rows: Rows, name: str) -> None:
    status, body, headers = WAITS[name]

    def answer(asked: Asked) -> Answer:
        return Answer(status, body, headers) if asked.number == 1 else Answer(200, completion())

    given = rows({"prompt": "a"}, {"prompt": "b"})
    with scripted(answer) as server:
        told = cli("run", given, "--base-url", f"{server.url}/v1", "-c", "1", "-o", "out.jsonl")
    assert told.status == 0, told.err
    assert "failed attempts: 1 rate_limited" in told.err
    assert len(server.asked) == 3


INVALID = ("json_validate_failed", "tool_use_failed", "output_parse_failed")


@pytest.mark.parametrize("code", INVALID)
def test_an_invalid_answer_is_asked_for_twice_more(cli: Cli, rows: Rows, code: str) -> None:
    body = error("Failed to generate. Please adjust your prompt.", code=code)

    def answer(asked: Asked) -> Answer:
        is_bad = asked.number == 1 or asked.body["messages"][0]["content"] == "bad"
        return Answer(400, body) if is_bad else Answer(200, completion())

    given = rows({"prompt": "a"}, {"prompt": "bad"})
    with scripted(answer) as server:
        told = cli("run", given, "--base-url", f"{server.url}/v1", "-c", "1", "-o", "out.jsonl")
    assert "1 succeeded + 1 failed" in told.err
    assert "failed attempts: 4 bad_reply" in told.err
    assert len(server.asked) == 5


@pytest.mark.parametrize("status", [402, 403])
def test_a_402_or_403_parks_the_whole_endpoint(cli: Cli, rows: Rows, status: int) -> None:
    """A retry of 20 s means that nothing else is sent until then."""

    def answer(asked: Asked) -> Answer:
        late = {"Retry-After": "20"}
        return Answer(status, error("m"), late) if asked.number == 1 else Answer(200, completion())

    given = rows(*({"prompt": str(number)} for number in range(5)))
    with scripted(answer) as server:
        base = ("--base-url", f"{server.url}/v1", "-c", "1", "--max-retries", "0")
        told = cli("run", given, *base, "--deadline", "300ms", "-o", "out.jsonl")
    assert told.status == 2
    assert len(server.asked) == 1


QUOTES = {
    "in a sentence": error(f"Invalid value: {TOO_LOW}", **ANTHROPIC),
    "of one model": error("LiteLLM User: u, exceeded budget for model=m", **BUDGET),
    "of one tag": error(f"{OVER} Tag=t Current cost: 2.6, Max budget: 1.0", **BUDGET),
    "in json": error(f'Invalid body: {{"error": {{"message": "{TOO_LOW}"}}}}', **ANTHROPIC),
    "without a type": error(TOO_LOW),
    "in detail": {"detail": [{"loc": ["body"], "input": TOO_LOW, "type": "string_type"}]},
}


@pytest.mark.parametrize("name", QUOTES)
def test_a_row_about_money_that_is_rejected_ends_no_run(cli: Cli, rows: Rows, name: str) -> None:
    given = rows({"prompt": TOO_LOW}, {"prompt": "b"})

    def answer(asked: Asked) -> Answer:
        is_quoted = asked.body["messages"][0]["content"] == TOO_LOW
        return Answer(400, QUOTES[name]) if is_quoted else Answer(200, completion())

    with scripted(answer) as server:
        told = cli("run", given, "--base-url", f"{server.url}/v1", "-c", "1", "-o", "out.jsonl")
    assert told.status == 1
    assert "1 succeeded" in told.err
    assert "failed attempts: 1 rejected" in told.err


def test_a_list_of_one_error_is_read_as_the_error(cli: Cli, rows: Rows) -> None:
    body = [error("* Unknown name", code=400, status="INVALID_ARGUMENT")]
    with scripted(lambda _: Answer(400, body)) as server:
        told = cli("run", rows({"prompt": "a"}), "--base-url", f"{server.url}/v1")
    assert "rejected the request: HTTP 400: * Unknown name (" in told.err


REASON = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
INCORRECT = (
    "Incorrect API key provided: xa***gA. You can obtain an API key from https://console.x.ai."
)
LEAKED = "Your API key was reported as leaked. Please use another API key."
DISABLED = "This organization has been disabled."
REFUSED = {
    "gemini": (400, [error("Not valid", status="INVALID_ARGUMENT", details=[REASON])], "Not valid"),
    "xai": (
        400,
        {"code": "Client specified an invalid argument", "error": INCORRECT},
        "Incorrect API key provided",
    ),
    "gemini, leaked": (403, [error(LEAKED, code=403, status="PERMISSION_DENIED")], LEAKED),
    "anthropic": (400, {"type": "error", **error(DISABLED, **ANTHROPIC)}, DISABLED),
    "groq": (400, error("Restricted", code="organization_restricted"), "Restricted"),
    "by code": (400, error("wrong key", code="invalid_api_key"), "wrong key"),
    "by type": (403, error("wrong key", type="authentication_error"), "wrong key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_key_ends_the_run_whatever_its_status(cli: Cli, rows: Rows, name: str) -> None:
    status, body, words = REFUSED[name]
    with scripted(lambda _: Answer(status, body)) as server:
        told = cli("run", rows({"prompt": "a"}), "--base-url", f"{server.url}/v1")
    assert told.status == 2
    assert f"error: the endpoint refused the key: HTTP {status}: {words}" in told.err


def test_a_model_that_the_key_may_not_use_fails_its_row_alone(cli: Cli, rows: Rows) -> None:
    denied = error(
        "key not allowed to access model. This key can only access models=['m']. Tried to access b",
        type="key_model_access_denied",
        param="model",
        code="401",
    )

    def answer(asked: Asked) -> Answer:
        is_denied = asked.body["messages"][0]["content"] == "b"
        return Answer(401, denied) if is_denied else Answer(200, completion())

    given = rows({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"})
    with scripted(answer) as server:
        told = cli("run", given, "--base-url", f"{server.url}/v1", "-c", "1", "-o", "out.jsonl")
    assert told.status == 1
    assert "2 succeeded + 1 failed" in told.err
    assert "rejected the request: HTTP 401: key not allowed to access model" in told.err


def test_a_row_that_is_larger_than_the_providers_limit_is_asked_once(cli: Cli, rows: Rows) -> None:
    large = error(
        "Request too large for gpt-4o in organization o on tokens per min (TPM): Limit 30000, "
        "Requested 31538. The input or output tokens must be reduced in order to run successfully.",
        type="tokens",
        code="rate_limit_exceeded",
    )

    def answer(asked: Asked) -> Answer:
        is_large = asked.body["messages"][0]["content"] == "large"
        return Answer(429, large) if is_large else Answer(200, completion())

    given = rows({"prompt": "large"}, {"prompt": "b"})
    with scripted(answer) as server:
        told = cli("run", given, "--base-url", f"{server.url}/v1", "-c", "1", "-o", "out.jsonl")
    assert told.status == 1
    assert "1 succeeded" in told.err
    assert "failed attempts: 1 over_limit" in told.err
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (
            {
                "x-ratelimitbysize-limit-minute": "500000",
                "x-ratelimitbysize-remaining-minute": "499000",
                "x-ratelimitbysize-limit-month": "1000000000",
                "x-ratelimitbysize-remaining-month": "999999000",
            },
            "500000/60s tokens",
        ),
        ({"x-tokenlimit-limit": "3000", "x-tokenlimit-remaining": "2990"}, "3000/1s tokens"),
        (
            {
                "x-tokenlimit-limit": "3000",
                "x-tokenlimit-remaining": "2990",
                "x-tokenlimit-reset": "58",
            },
            "3000/60s tokens",
        ),
        ({"x-tokenlimit-limit-minute": "3000"}, "3000/60s tokens"),
    ],
)
def test_limits_of_tokens_by_other_names_are_read(
    cli: Cli, rows: Rows, headers: dict[str, str], found: str
) -> None:
    with scripted(lambda _: Answer(200, completion(), headers)) as server:
        told = cli("run", rows({"prompt": "a"}), "--base-url", f"{server.url}/v1", "--rate", "auto")
    assert told.status == 0, told.err
    assert f"limits found: {found}" in told.err


@pytest.mark.parametrize(
    "host",
    ["bedrock-mantle.eu-west-1.api.aws", "vpce-1a.bedrock-mantle.us-east-1.vpce.amazonaws.com"],
)
def test_bedrock_mantle_reserves_max_tokens(cli: Cli, rows: Rows, host: str) -> None:
    """Two calls of 1,000 fill the minute, however short their answers are."""
    given = rows(*({"prompt": str(number)} for number in range(8)))
    # As a proxy it is asked for any host.
    with scripted(lambda _: Answer(200, completion())) as server:
        limited = ("--tokens", "2200/60s", "--profile", "fixed", "--max-tokens", "1000", "-c", "1")
        where = ("--base-url", f"http://{host}/v1", "--proxy", server.url)
        told = cli("run", given, *limited, *where, "--deadline", "500ms", "-o", "out.jsonl")
    assert told.status == 2
    assert 1 <= len(server.asked) <= 2
    assert server.asked[0].path == f"http://{host}/v1/chat/completions"


UNKNOWN_MODEL = {
    "openai": error("The requested model 'm' does not exist.", code="model_not_found"),
    "mistral": {"object": "error", "message": "Invalid model: m", "type": "invalid_model"},
    "deepseek": error("Model Not Exist", type="invalid_request_error"),
    "openrouter": error("vendor/m:free is not a valid model ID", code=400),
    "litellm": error("/chat/completions: Invalid model name passed in model=m.", code="400"),
    "litellm, nested": error(
        {"error": "/responses: Invalid model name passed in model=m"}, type="None", code="400"
    ),
}


@pytest.mark.parametrize("name", UNKNOWN_MODEL)
def test_rows_go_to_an_endpoint_that_has_the_model_whatever_the_status(
    cli: Cli, rows: Rows, name: str
) -> None:
    given = rows(*({"prompt": str(number)} for number in range(40)))
    with (
        scripted(lambda _: Answer(400, UNKNOWN_MODEL[name])) as without,
        scripted(lambda _: Answer(200, completion())) as other,
    ):
        toml = "".join(
            f'[endpoints.{key}]\nbase_url = "{server.url}/v1"\n'
            for key, server in (("without", without), ("other", other))
        )
        Path("redline.toml").write_text(toml, "utf-8")
        both = ("--endpoint", "without", "--endpoint", "other", "--model", "m")
        told = cli("run", given, *both, "-c", "2", "-o", "out.jsonl")
        assert told.status == 0, told.err
        assert without.asked
        # Alone, it fails the row, with what to do.
        told = cli("run", given, "--endpoint", "without", "--model", "m", "--limit", "1")
    assert told.status == 1
    assert "check the model: the endpoint does not have it" in told.err
