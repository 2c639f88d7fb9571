"""Keys and limits of tenants in front of a real server, as OpenAI's SDK and plain HTTP see them."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import openai
import pytest

from redline.calls import Backend
from redline.clock import SYSTEM
from redline.httpserver import Exchange
from redline.limits import Rate
from redline.serve.http import Front
from redline.serve.keys import (
    Keyring,
    Refused,
    Tenants,
    TenantSettings,
    add_key,
    revoke_key,
)
from support.fronting import BODY, MESSAGES, Told, root

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
SETTINGS = {
    "acme": TenantSettings(requests=(Rate(2, 3600.0),), concurrency=1),
    "lab": TenantSettings(tokens=(Rate(10, 60.0),)),
}


class Guarded(Front):
    """A front that asks for keys, and counts every call as 8 tokens."""

    def __init__(self, backend: Backend, keyring: Keyring) -> None:
        super().__init__(backend)
        self._keyring = keyring

    async def _answer(self, exchange: Exchange) -> None:
        headers = exchange.headers
        tenant = self._keyring.known(headers.get("authorization"), headers.get("x-api-key")).tenant
        started = tenant.limits.try_start(SYSTEM.now_s(), 8)
        if isinstance(started, Refused):
            raise started.refusal()
        with started:
            await super()._answer(exchange)


def told() -> Told:
    backend = Told()
    backend.go.set()
    return backend


def client(front: Front, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{root(front)}/v1", api_key=key, max_retries=0)


async def test_the_sdk_of_openai(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    key, secret = add_key(path, "acme")
    tenants = Tenants(SETTINGS)
    keyring = Keyring(path, tenants)
    async with (
        Guarded(told(), keyring) as front,
        client(front, secret) as known,
        client(front, "sk-somebody-elses") as unknown,
    ):
        with pytest.raises(openai.AuthenticationError) as caught:
            await unknown.chat.completions.create(model="m", messages=MESSAGES)
        assert caught.value.code == "invalid_api_key"
        assert "somebody" not in caught.value.message
        for _ in range(2):
            answer = await known.chat.completions.create(model="m", messages=MESSAGES)
            assert answer.choices[0].message.content == "done"
        with pytest.raises(openai.RateLimitError) as limited:
            await known.chat.completions.create(model="m", messages=MESSAGES)
        assert limited.value.code == "rate_limit_exceeded"
        assert "2 requests/h" in limited.value.message
        assert 3590 <= int(limited.value.response.headers["retry-after"]) <= 3600
        assert tenants.of("acme").limits.in_flight == 0
        revoke_key(path, key.id)
        assert keyring.reload_if_changed()
        with pytest.raises(openai.AuthenticationError, match="has been revoked"):
            await known.chat.completions.create(model="m", messages=MESSAGES)


async def test_plain_http(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    _, secret = add_key(path, "lab")
    async with (
        Guarded(told(), Keyring(path, Tenants(SETTINGS))) as front,
        aiohttp.ClientSession(f"{root(front)}/v1/") as session,
    ):
        async with session.post("chat/completions", json=BODY) as answer:
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        statuses = []
        for _ in range(2):
            headers = {"x-api-key": secret}
            async with session.post("chat/completions", json=BODY, headers=headers) as answer:
                statuses.append(answer.status)
        assert statuses == [200, 429], "8 of 10 tokens are taken, and no usage is known"
