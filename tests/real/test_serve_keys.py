"""`redline serve` with keys: who may ask, how much, and what is kept of it."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai
import pytest

from support.scripted import Answer, Asked, chat, said, scripted
from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
HELLO: Any = [{"role": "user", "content": "hello"}]
TOML = """
[serve]
keys = "keys.jsonl"
[endpoints.provider]
base_url = "{url}"
headers = {{ Authorization = "Bearer upstream-secret" }}
models = {{ fast = "m", other = "n" }}
[prices.fast]
input = 1
output = 1000
[tenants.small]
requests = ["3/60s"]
[tenants.poor]
money_per_day = "0.009usd"
[tenants.narrow]
models = ["fast"]
concurrency = 1
[tenants.chief]
admin = true
"""


def ask(serve: Serve, key: str, model: str = "fast", **facts: Any) -> Any:
    client = serve.client(key)
    return client.chat.completions.create(model=model, messages=HELLO, **facts)


def page(serve: Serve, path: str, key: str = "") -> tuple[int, str]:
    command = ["curl", "-s", "-w", "\n%{http_code}", serve.url.removesuffix("/v1") + path]
    if key:
        command += ["-H", f"Authorization: Bearer {key}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


def test_keys_are_asked_for_and_none_reaches_the_server(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one")
    with (
        SimProcess("--api-key", "upstream-secret") as sim,
        Serve(tmp_path, toml=TOML.format(url=sim.base_url)) as serve,
    ):
        # The simulated provider takes nothing but its own key.
        assert ask(serve, keys["one"]).choices
        for key in ("rl-nothing", "upstream-secret"):
            with pytest.raises(openai.AuthenticationError) as told:
                ask(serve, key)
            assert told.value.code == "invalid_api_key"
        assert sim.stats()["received"] == 1
        assert page(serve, "/metrics")[0] == 200
        status, err = serve.end()
    assert status == 0
    assert keys["one"] not in err


def test_a_tenant_stays_within_its_limits_and_its_models(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "small", "narrow", "poor")
    with (
        SimProcess("--api-key", "upstream-secret") as sim,
        Serve(tmp_path, toml=TOML.format(url=sim.base_url)) as serve,
    ):
        for _ in range(3):
            ask(serve, keys["small"])
        with pytest.raises(openai.RateLimitError, match="limit of 3 requests") as late:
            ask(serve, keys["small"])
        assert 0 < int(late.value.response.headers["retry-after"]) <= 60
        with pytest.raises(openai.NotFoundError):
            ask(serve, keys["narrow"], model="other")
        assert ask(serve, keys["narrow"]).choices
        # An answer of 4 tokens costs 0.004 dollars, and what was reserved beyond it is given back.
        ask(serve, keys["poor"], max_tokens=8)
        ask(serve, keys["poor"], max_tokens=4)
        with pytest.raises(openai.RateLimitError, match="does not cover the call") as spent:
            ask(serve, keys["poor"], max_tokens=4)
        assert spent.value.code == "insufficient_quota"
        assert sim.stats()["received"] == 6
        serve.end()
        with Serve(tmp_path) as again, pytest.raises(openai.RateLimitError, match="cover"):
            ask(again, keys["poor"], max_tokens=4)


def test_a_restricted_tenant_cannot_have_a_router_choose_another_model(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "narrow", "poor", "free")
    fields: dict[str, Any] = {
        "models": ["n"],
        "fallbacks": ["n"],
        "route": "fallback",
        "provider": {"order": ["dear"]},
        "preset": "dear",
        "extra_body": {"models": ["n"]},
    }
    with (
        SimProcess("--api-key", "upstream-secret") as sim,
        Serve(tmp_path, toml=TOML.format(url=sim.base_url)) as serve,
    ):
        for tenant in ("narrow", "poor"):
            for name, value in fields.items():
                with pytest.raises(openai.BadRequestError) as refused:
                    ask(serve, keys[tenant], max_tokens=1, extra_body={name: value})
                assert refused.value.param == name
        assert sim.stats()["received"] == 0
        # All of them are the endpoint's own matter for a tenant without these limits.
        assert ask(serve, keys["free"], extra_body=fields).choices


def test_only_a_tenant_of_the_class_high_may_have_an_endpoint_prefer_its_calls(
    tmp_path: Path,
) -> None:
    keys = keys_of(tmp_path, "usual", "urgent")
    urgent: list[dict[str, Any]] = [
        {"priority": -5},
        {"priority": "-5", "service_tier": "priority"},
        {"service_tier": "priority", "stream": True},
        {"service_tier": "fast"},
        {"service_tier": "ultrafast"},
        {"service_tier": "flex"},
    ]
    bodies: list[dict[str, Any]] = []

    def answer(asked: Asked) -> Any:
        bodies.append(asked.body)
        return chat(said())

    def stated(body: dict[str, Any]) -> dict[str, Any]:
        return {name: body[name] for name in ("priority", "service_tier") if name in body}

    with scripted(answer) as server:
        toml = TOML.format(url=server.base_url) + '[tenants.urgent]\nclasses = ["high"]\n'
        with Serve(tmp_path, toml=toml) as serve:
            for fields in urgent:
                ask(serve, keys["usual"], extra_body=fields)
            assert [stated(body) for body in bodies] == [*[{}] * 5, {"service_tier": "flex"}]
            rows = b"".join(
                json.dumps(
                    {
                        "custom_id": str(number),
                        "method": "POST",
                        "url": "/v1/chat/completions",
                        "body": {"model": "fast", "messages": HELLO, **fields},
                    }
                ).encode()
                + b"\n"
                for number, fields in enumerate(urgent[:2])
            )
            for tenant in keys:
                del bodies[:]
                client = serve.client(keys[tenant])
                file = client.files.create(file=("in.jsonl", rows), purpose="batch")
                client.batches.create(
                    input_file_id=file.id,
                    endpoint="/v1/chat/completions",
                    completion_window="24h",
                )
                until_s = time.monotonic() + 20
                while len(bodies) < 2:
                    assert time.monotonic() < until_s
                    time.sleep(0.05)
                found = sorted(map(stated, bodies), key=len)
                assert found == ([{}, {}] if tenant == "usual" else urgent[:2])
            del bodies[:]
            for fields in urgent:
                ask(serve, keys["urgent"], extra_body=fields)
            assert [*map(stated, bodies)] == [*map(stated, urgent)]


def test_money_is_reserved_for_every_choice_of_a_call(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one", "poor")
    with (
        SimProcess("--api-key", "upstream-secret") as sim,
        Serve(tmp_path, toml=TOML.format(url=sim.base_url)) as serve,
    ):
        for facts in ({"max_tokens": 4}, {"max_tokens": 1, "max_completion_tokens": 4}):
            with pytest.raises(openai.BadRequestError, match=r"may cost \$0.012"):
                ask(serve, keys["poor"], n=3, **facts)
        assert sim.stats()["received"] == 0
        # Without a maximum, the estimate is a mean: a call starts while nothing is spent.
        assert ask(serve, keys["poor"], n=1).choices


def test_a_call_that_only_may_exceed_a_limit_starts(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one", "other")
    limited = '[tenants.one]\ntokens = "4000/60s"\n[tenants.other]\ntokens = "4000/60s"\n'
    url = "data:image/png;base64," + base64.b64encode(bytes(100_000)).decode()
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    def answer(asked: Asked) -> Any:
        return chat(said(), usage={"prompt_tokens": 3_900, "completion_tokens": 1})

    with (
        scripted(answer) as server,
        Serve(tmp_path, toml=TOML.format(url=server.url) + limited) as serve,
    ):
        one, other = serve.client(keys["one"]).chat, serve.client(keys["other"]).chat
        assert one.completions.create(model="fast", messages=image).choices
        # By its bytes, this is 5,000 tokens; it may be 2,400.
        long: Any = [{"role": "user", "content": "x" * 20_000}]
        with pytest.raises(openai.RateLimitError, match="has reached its limit"):
            one.completions.create(model="fast", messages=long)
        assert other.completions.create(model="fast", messages=long).choices
        with pytest.raises(openai.BadRequestError, match="more than the limit") as told:
            other.completions.create(
                model="fast", messages=[{"role": "user", "content": "x" * 40_000}]
            )
        assert told.value.code == "over_limit"
    assert len(server.asked) == 2


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a_stream_counts_whether_or_not_its_client_wants_its_usage(
    tmp_path: Path, options: Any
) -> None:
    keys = keys_of(tmp_path, "one")
    event = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9000}}\n\n'

    def answer(asked: Asked) -> Answer:
        wanted = (asked.body.get("stream_options") or {}).get("include_usage") is True
        body = event + usage * wanted + b"data: [DONE]\n\n"
        return Answer(200, body, {"Content-Type": "text/event-stream"})

    toml = TOML + '[tenants.one]\ntokens = "5000/60s"\n'
    with scripted(answer) as server, Serve(tmp_path, toml=toml.format(url=server.url)) as serve:
        stream = ask(serve, keys["one"], stream=True, stream_options=options)
        assert [len(chunk.choices) for chunk in stream] == [1]
        with pytest.raises(openai.RateLimitError, match="has reached its limit"):
            ask(serve, keys["one"])
        assert len(server.asked) == 1


def test_a_usage_that_no_call_can_have_shuts_no_other_tenant_out(tmp_path: Path) -> None:
    toml = TOML.replace("0.009usd", "50usd")
    keys = keys_of(tmp_path, "one", "poor")
    stated = [10**400, 999_999_999, 10]

    def answer(asked: Asked) -> Any:
        usage = {"prompt_tokens": 3, "completion_tokens": stated.pop(0)}
        return chat(said(), usage=usage)

    with scripted(answer) as server, Serve(tmp_path, toml=toml.format(url=server.url)) as serve:
        ask(serve, keys["one"])
        ask(serve, keys["one"])
        # Reserved for it is the mean length of answers, at a price of 1000 dollars a million.
        assert ask(serve, keys["poor"]).choices
        assert page(serve, "/metrics")[0] == 200
    assert not stated


def test_a_key_that_is_added_or_revoked_counts_within_seconds(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one")
    with (
        SimProcess("--api-key", "upstream-secret") as sim,
        Serve(tmp_path, toml=TOML.format(url=sim.base_url)) as serve,
    ):
        # The heads of its later requests are known from the one before.
        kept = serve.client(keys["one"])
        for _ in range(4):
            assert kept.chat.completions.create(model="fast", messages=HELLO).choices
        listed = subprocess.run(
            [sys.executable, "-m", "redline", "keys", "list", "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        identity = json.loads(listed.stdout)[0]["id"]
        subprocess.run(
            [sys.executable, "-m", "redline", "keys", "revoke", identity], cwd=tmp_path, check=True
        )
        keys |= keys_of(tmp_path, "two")
        until_s = time.monotonic() + 20
        while page(serve, "/status", keys["two"])[0] == 401:
            assert time.monotonic() < until_s
        with pytest.raises(openai.AuthenticationError, match="revoked"):
            kept.chat.completions.create(model="fast", messages=HELLO)
        with pytest.raises(openai.AuthenticationError, match="revoked"):
            ask(serve, keys["one"])
        assert ask(serve, keys["two"]).choices


def test_only_an_admin_sees_the_state_of_others(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one", "chief")
    with (
        SimProcess("--api-key", "upstream-secret") as sim,
        Serve(tmp_path, toml=TOML.format(url=sim.base_url)) as serve,
    ):
        ask(serve, keys["one"])
        assert page(serve, "/")[0] == 200
        assert page(serve, "/status")[0] == 401
        assert page(serve, "/status", keys["one"])[0] == 403
        status, body = page(serve, "/status", keys["chief"])
        assert status == 200
        tenants = {one["name"]: one for one in json.loads(body)["tenants"]}
        assert tenants["one"]["calls"] == 1
        assert tenants["one"]["tokens"] == 6


def test_a_tenant_that_is_no_longer_an_admin_gets_no_further_state(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "chief")
    toml = TOML.format(url="http://127.0.0.1:9/v1")
    with Serve(tmp_path, toml=toml) as serve:
        events = urllib.request.Request(
            serve.url.removesuffix("/v1") + "/events",
            headers={"Authorization": f"Bearer {keys['chief']}"},
        )
        with urllib.request.urlopen(events, timeout=10) as stream:
            assert stream.readline().startswith(b"data:")
            serve.write(toml.replace("admin = true", ""))
            serve.process.send_signal(signal.SIGHUP)
            # Two events a second come as long as the stream is open.
            with pytest.raises(http.client.IncompleteRead):
                stream.read(30_000)


def test_what_was_spent_before_a_restart_is_shown_as_spent_today(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one", "chief")
    spent = {"day": f"{datetime.now(UTC):%Y-%m-%d}", "dollars": {"one": "1.25"}}
    (tmp_path / "keys.spent.json").write_text(json.dumps(spent), "utf-8")
    with (
        SimProcess("--api-key", "upstream-secret") as sim,
        Serve(tmp_path, toml=TOML.format(url=sim.base_url)) as serve,
    ):
        ask(serve, keys["one"])
        _, body = page(serve, "/status", keys["chief"])
        tenants = {one["name"]: one for one in json.loads(body)["tenants"]}
        assert 1.25 < tenants["one"]["spent_usd"] < 1.3
