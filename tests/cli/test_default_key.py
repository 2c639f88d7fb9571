"""OPENAI_API_KEY goes to OpenAI and to this machine, and elsewhere only by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from support.scripted import Answer, Scripted, completion, scripted

Cli = Callable[..., Any]
Rows = Callable[..., str]

KEY = "sk-only-for-openai-0123456789"
# Forms of 127.0.0.1 that the system resolves, and that read as another host's name.
ELSEWHERE = "127.1"


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", "other-key")


def serving() -> Any:
    return scripted(lambda _: Answer(200, completion()))


def elsewhere(server: Scripted) -> str:
    return f"http://{ELSEWHERE}:{server.server_address[1]}/v1"


def sent(server: Scripted) -> list[str | None]:
    return [asked.headers.get("authorization") for asked in server.asked]


@pytest.mark.parametrize(
    "host",
    [
        "llm.example.com",
        "gpu-box",
        "192.168.1.7",
        "mine.openai.azure.com",
        "evilopenai.com",
        "openai.com.example.org",
        "localhost.example.org",
        "[2001:db8::1]",
        ELSEWHERE,
    ],
)
def test_another_host_is_refused_before_anything_is_sent(cli: Cli, rows: Rows, host: str) -> None:
    where = ("--base-url", f"http://{host}:9/v1", "-o", "out.jsonl")
    told = cli("run", rows({"prompt": "a"}), *where)
    assert told.status == 2
    what, _, hint = told.err.splitlines()
    assert what == (
        f"error: the key in OPENAI_API_KEY is not sent to {host.strip('[]')}: it goes only to "
        "OpenAI, this machine, and an OPENAI_BASE_URL from the same source (the environment or "
        ".env)"
    )
    assert hint.startswith("hint: --api-key-env NAME sends the key")
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("url", ["htp://h/v1", "http://a b/v1", "http://.../v1", "h/v1"])
def test_what_is_no_url_is_said_to_be_none(cli: Cli, rows: Rows, url: str) -> None:
    told = cli("run", rows({"prompt": "a"}), "--base-url", url)
    assert (told.status, told.err.splitlines()[0]) == (2, f"error: not a base URL: {url}")


def test_every_way_to_name_the_host_is_alike(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows({"prompt": "a"})
    refused = "OPENAI_API_KEY is not sent to "
    with serving() as server:
        url = elsewhere(server)
        assert refused in cli("run", given, "--endpoint", url).err
        Path("redline.toml").write_text(f'[endpoints.lab]\nbase_url = "{url}"\n')
        assert refused in cli("run", given, "--endpoint", "lab").err
        Path("redline.toml").write_text(f'[run]\nbase_url = "{url}"\n')
        assert refused in cli("run", given).err
        Path("redline.toml").unlink()
        # A folder's file must not lead the environment's key away.
        Path(".env").write_text(f"OPENAI_BASE_URL={url}\n")
        assert refused in cli("run", given).err
        where = ("--base-url", url, "--model", "m", "-o", "out.jsonl")
        Path("labels.json").write_text('["a", "b"]')
        assert refused in cli("tag", given, "--schema", "labels.json", *where).err
        assert refused in cli("synth", "--count", "1", "--prompt", "a {{ n }}", *where).err
    assert server.asked == []


def test_a_named_key_goes_anywhere(cli: Cli, rows: Rows) -> None:
    given = rows({"prompt": "a"})
    with serving() as server:
        url = elsewhere(server)
        for name in ("OPENAI_API_KEY", "OTHER_KEY"):
            told = cli("run", given, "--base-url", url, "--api-key-env", name)
            assert told.status == 0, told.err
        table = f'[endpoints.lab]\nbase_url = "{url}"\napi_key_env = "OPENAI_API_KEY"\n'
        Path("redline.toml").write_text(table)
        assert cli("run", given, "--endpoint", "lab").status == 0
    assert sent(server) == [f"Bearer {KEY}", "Bearer other-key", f"Bearer {KEY}"]


def test_an_empty_key_or_a_header_of_its_own_sends_none(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows({"prompt": "a"})
    with serving() as server:
        url = elsewhere(server)
        for header in ("api-key: azure", "Authorization: Bearer own", "X-Goog-Api-Key: g"):
            assert cli("run", given, "--base-url", url, "--header", header).status == 0
        monkeypatch.setenv("OPENAI_API_KEY", "")
        assert cli("run", given, "--base-url", url).status == 0
    assert sent(server) == [None, "Bearer own", None, None]


def test_headers_of_run_yield_to_the_endpoints_table_and_that_to_the_command_line(
    cli: Cli, rows: Rows
) -> None:
    given = rows({"prompt": "a"})
    with serving() as server:
        base = f'base_url = "{elsewhere(server)}"\n'
        Path("redline.toml").write_text(
            '[run]\nheader = ["Authorization: Bearer of-run"]\n'
            f'[endpoints.own]\n{base}headers = {{ authorization = "Bearer own" }}\n'
            f'[endpoints.keyed]\n{base}api_key_env = "OTHER_KEY"\n'
            f"[endpoints.plain]\n{base}"
        )
        for more in ((), ("--header", "Authorization: Bearer stated")):
            for name in ("own", "keyed", "plain"):
                assert cli("run", given, "--endpoint", name, *more).status == 0
    assert sent(server) == [
        "Bearer own", "Bearer other-key", "Bearer of-run", *["Bearer stated"] * 3
    ]  # fmt: skip


def test_a_pair_from_the_environment_belongs_together(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows({"prompt": "a"})
    with serving() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", elsewhere(server))
        assert cli("run", given).status == 0
        assert redline.run(given, prompt="{{ prompt }}", progress=False).succeeded == 1
    assert sent(server) == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "0.0.0.0"])
def test_this_machine_is_sent_it(cli: Cli, rows: Rows, host: str) -> None:
    with serving() as server:
        url = f"http://{host}:{server.server_address[1]}/v1"
        told = cli("run", rows({"prompt": "a"}), "--base-url", url)
    assert told.status == 0, told.err
    assert sent(server) == [f"Bearer {KEY}"]


def test_from_python(rows: Rows) -> None:
    given = rows({"prompt": "a"})
    with serving() as server:
        url = elsewhere(server)
        with pytest.raises(redline.ConfigError, match=f"not sent to {ELSEWHERE}") as raised:
            redline.run(given, endpoint=url, progress=False)
        assert 'api_key=os.environ["OPENAI_API_KEY"] sends it there' in raised.value.hint
        for key in (KEY, ""):
            assert redline.run(given, endpoint=url, api_key=key, progress=False).succeeded == 1
        headers = {"Authorization": "Bearer own"}
        assert redline.run(given, endpoint=url, headers=headers, progress=False).succeeded == 1
    assert sent(server) == [f"Bearer {KEY}", None, "Bearer own"]
