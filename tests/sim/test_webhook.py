"""What reaches a webhook that fails, in virtual time: each notification once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from redline.job.monitor import Webhook
from redline.testing import VirtualClock, virtual_run
from support.raw_server import RawServer, Seen, answer

PATH = "/services/secret?room=1"


class Hook:
    """Answers with these statuses, then with the last of them. taken: what it has answered well."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.taken: list[Any] = []
        self.times_s: list[float] = []

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        assert (seen.method, seen.target) == ("POST", PATH)
        self.times_s.append(asyncio.get_running_loop().time())
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        if 200 <= status < 300:
            self.taken.append(seen.json())
        # Some quote a part of the path in their errors.
        body = b"ok" if status < 400 else {"error": {"message": "no service secret?room=1"}}
        writer.write(answer(b"" if status == 204 else body, status=status))


def sent(
    hook: Hook, bodies: Sequence[dict[str, int]], *, wait_s: float = 200.0, is_up: bool = True
) -> str | None:
    """What was lost, `wait_s` after these were put, all at once."""

    async def main() -> str | None:
        async with RawServer(hook) as server:
            url = server.base_url.removesuffix("/v1") + PATH
            if not is_up:
                await server.stop()
            webhook = Webhook(url, VirtualClock(asyncio.get_running_loop()))
            for body in bodies:
                webhook.put(body)
            await asyncio.sleep(wait_s)
            await webhook.aclose()
            return webhook.failure

    return virtual_run(main())


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_success_is_one(status: int) -> None:
    hook = Hook(status)
    assert sent(hook, [{"n": 1}, {"n": 2}]) is None
    assert hook.taken == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_one_that_fails_first_gets_each_once_and_in_order(status: int) -> None:
    hook = Hook(status, status, 200, status, 200)
    assert sent(hook, [{"n": 1}, {"n": 2}]) is None
    assert hook.taken == [{"n": 1}, {"n": 2}]
    first_s, second_s, third_s, *_ = hook.times_s
    assert second_s - first_s >= 1
    assert third_s - second_s >= 2


def test_one_that_refuses_is_not_asked_again_and_its_path_is_not_shown() -> None:
    hook = Hook(404)
    lost = sent(hook, [{"n": 1}])
    assert len(hook.times_s) == 1
    assert lost is not None
    assert lost.startswith("1 notification did not reach the webhook at 127.0.0.1:")
    assert "secret" not in lost


def test_one_that_always_fails_is_given_up_after_a_while() -> None:
    hook = Hook(500)
    lost = sent(hook, [{"n": 1}, {"n": 2}])
    assert lost is not None
    assert lost.startswith("2 notifications did not reach")
    assert len(hook.times_s) == 14
    # A minute each.
    assert 110 < hook.times_s[-1] - hook.times_s[0] < 140


def test_the_end_of_a_job_waits_three_seconds_for_it() -> None:
    hook = Hook(500)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with RawServer(hook) as server:
            url = server.base_url.removesuffix("/v1") + PATH
            webhook = Webhook(url, VirtualClock(loop))
            webhook.put({"n": 1})
            begun_s = loop.time()
            await webhook.aclose()
            assert webhook.failure is not None
            return loop.time() - begun_s

    assert virtual_run(main()) <= 3.1


def test_one_that_is_down_loses_the_oldest_of_too_many() -> None:
    hook = Hook(200)
    lost = sent(hook, [{"n": n} for n in range(150)], wait_s=10, is_up=False)
    assert lost is not None
    assert lost.startswith("150 notifications did not reach")
    assert "secret" not in lost


def test_one_in_transit_is_not_dropped() -> None:
    hook = Hook(500, 200)

    async def main() -> str | None:
        async with RawServer(hook) as server:
            url = server.base_url.removesuffix("/v1") + PATH
            webhook = Webhook(url, VirtualClock(asyncio.get_running_loop()))
            webhook.put({"n": 0})
            await asyncio.sleep(0.5)
            for n in range(1, 102):
                webhook.put({"n": n})
            await asyncio.sleep(10)
            await webhook.aclose()
            return webhook.failure

    lost = virtual_run(main())
    assert hook.taken == [{"n": n} for n in range(102) if n not in (1, 2)]
    assert lost is not None
    assert lost.startswith("2 notifications did not reach")


def test_a_proxy_of_the_environment_that_cannot_be_used_loses_them_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def main() -> str | None:
        webhook = Webhook("http://hooks.example.com?x=1")
        webhook.put({"n": 1})
        await webhook.aclose()
        return webhook.failure

    lost = virtual_run(main())
    assert lost is not None
    assert lost.startswith("1 notification did not reach the webhook at hooks.example.com: ")
