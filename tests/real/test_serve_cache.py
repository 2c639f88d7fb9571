"""The answer cache of `redline serve`: what is answered from it, and to whom."""

from __future__ import annotations

import signal
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import pytest

from support.scripted import completion, scripted
from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess, fleet_of
from support.until import wait_until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
HELLO: Any = [{"role": "user", "content": "hello"}]


def ask(serve: Serve, key: str = "none", **facts: Any) -> tuple[bool, str | None]:
    """Whether the answer is from the cache, and its text."""
    client = serve.client(key)
    asked = {"model": "m", "messages": HELLO, "temperature": 0, **facts}
    told = client.chat.completions.with_raw_response.create(**asked)
    return told.headers.get("x-redline-cache") == "hit", told.parse().choices[0].message.content


def test_equal_calls_are_answered_once_until_they_are_too_old_or_asked_anew(tmp_path: Path) -> None:
    with SimProcess() as sim:
        flags = ("--endpoint", sim.base_url, "--cache", "--cache-ttl", "3s")
        with Serve(tmp_path, *flags) as serve:
            began_s = time.monotonic()
            assert ask(serve) == (False, "You said: hello")
            assert ask(serve) == (True, "You said: hello")
            assert ask(serve, temperature=1)[0] is False
            assert ask(serve, temperature=1)[0] is False
            # From now on, the new answer is stored.
            began_s = time.monotonic()
            assert ask(serve, extra_headers={"Cache-Control": "no-cache"})[0] is False
            assert ask(serve)[0] is True or time.monotonic() > began_s + 3
            time.sleep(max(0.0, began_s + 3.5 - time.monotonic()))
            assert ask(serve)[0] is False
            assert serve.end()[0] == 0
        received = sim.stats()["received"]
        # A restart forgets nothing that is not too old.
        with Serve(tmp_path, *flags) as serve:
            assert ask(serve)[0] is True or time.monotonic() > began_s + 6.5
        assert received == 5


def test_an_answer_that_is_asked_for_anew_replaces_the_stored_one(tmp_path: Path) -> None:
    answers = iter(["first", "second", "third"])
    with (
        scripted(lambda _: completion(next(answers))) as server,
        Serve(tmp_path, "--endpoint", server.base_url, "--cache") as serve,
    ):
        assert ask(serve) == (False, "first")
        assert ask(serve, extra_headers={"Cache-Control": "no-cache"}) == (False, "second")
        assert ask(serve) == (True, "second")
        never = {"Cache-Control": "no-cache, no-store"}
        assert ask(serve, extra_headers=never) == (False, "third")
        assert ask(serve) == (True, "second")


def test_a_stored_message_is_marked_as_one(tmp_path: Path) -> None:
    with SimProcess() as sim, Serve(tmp_path, "--endpoint", sim.base_url, "--cache") as serve:
        url = serve.url.removesuffix("/v1")
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            found = [
                client.messages.with_raw_response.create(
                    model="m", max_tokens=9, messages=HELLO, extra_body={"temperature": 0}
                )
                for _ in range(2)
            ]
    assert [one.headers.get("x-redline-cache") for one in found] == [None, "hit"]
    assert found[0].parse().content == found[1].parse().content


def test_equal_calls_at_once_are_one_request(tmp_path: Path) -> None:
    with (
        SimProcess("--latency", "0.5") as sim,
        Serve(tmp_path, "--endpoint", sim.base_url, "--cache") as serve,
        ThreadPoolExecutor(8) as threads,
    ):
        found = [one.result() for one in [threads.submit(ask, serve) for _ in range(8)]]
        assert {text for _, text in found} == {"You said: hello"}
        stats = sim.stats()
        assert stats["received"] == 1
        [tenant] = serve.page("/status")[1]["tenants"]
        assert tenant["tokens"] == stats["prompt_tokens"] + stats["completion_tokens"]


def test_a_call_that_moves_to_another_endpoint_is_looked_up_once(tmp_path: Path) -> None:
    with fleet_of(2, "--latency", "1") as fleet:
        before, after = (
            f'[serve]\ncache = true\n[endpoints.{name}]\nbase_url = "{sim.base_url}"\n'
            "concurrency = 1\n"
            for name, sim in zip("ab", fleet, strict=True)
        )
        with Serve(tmp_path, toml=before) as serve, ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(ask, serve, seed=n) for n in range(2)]
            calls += [threads.submit(ask, serve, temperature=1) for _ in range(2)]
            wait_until(lambda: serve.page("/status")[1]["waiting"] == 3)
            serve.write(after)
            serve.process.send_signal(signal.SIGHUP)
            assert [call.result()[0] for call in calls] == [False] * 4
            assert [sim.stats()["received"] for sim in fleet] == [1, 3]
            with urllib.request.urlopen(serve.url.removesuffix("/v1") + "/metrics") as page:
                lines = page.read().decode().splitlines()
    found = [line for line in lines if line.startswith("redline_cache_lookups_total")]
    assert {line.split('"')[1]: line.split()[-1] for line in found} == {
        "hit": "0.0",
        "shared": "0.0",
        "miss": "2.0",
        "passed": "2.0",
    }


def test_no_tenant_gets_the_answer_of_another(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "one", "two")
    with SimProcess("--latency", "0.3") as sim:
        flags = ("--endpoint", sim.base_url, "--cache", "--keys", "keys.jsonl")
        with Serve(tmp_path, *flags) as serve, ThreadPoolExecutor(2) as threads:
            both = [threads.submit(ask, serve, key) for key in keys.values()]
            assert [one.result()[0] for one in both] == [False, False]
            assert ask(serve, keys["one"])[0] is True
            stored: Any = {"messages": [{"role": "user", "content": "of one"}]}
            assert ask(serve, keys["one"], **stored)[0] is False
            # A stored answer, too, is only for whom it was made.
            assert ask(serve, keys["two"], **stored)[0] is False
            assert ask(serve, keys["one"], **stored)[0] is True
        assert sim.stats()["received"] == 4
