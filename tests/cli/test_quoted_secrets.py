"""A server that quotes the key, or sends what moves a terminal's cursor."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from support.scripted import Answer, Asked, completion, scripted

Cli = Callable[..., Any]
Rows = Callable[..., str]

# Four characters in a row are neither digits nor hex nor a word, so that no port, time or hash has
# them by chance.
KEY = "sk-proj-GhRt5JkMn8WvQz3PxLs6TyKv9ZwHr2NjVq7SmX"
FORMS = {
    "plain": KEY,
    "json": "".join(f"\\u{ord(char):04x}" for char in KEY),
    "json in json": "".join(f"\\\\u{ord(char):04X}" for char in KEY),
    "python": "".join(f"\\x{ord(char):02x}" for char in KEY),
    "decimal entities": "".join(f"&#{ord(char)};" for char in KEY),
    "hex entities": "".join(f"&#x{ord(char):x};" for char in KEY),
    "percent": "".join(f"%{ord(char):02X}" for char in KEY),
    "percent twice": "".join(f"%25{ord(char):02x}" for char in KEY),
    "invisible": "\u200b".join(KEY),
    "base64": b64encode(f"Bearer {KEY}".encode()).decode(),
    "hex": KEY.encode().hex(),
    "capitals": KEY.upper(),
}
# Messages are cut at 120 characters, or at 300; the key begins a little before.
PADS = (60, 100, 119, 200, 260, 280, 295)


def shown(text: str) -> list[str]:
    """The parts of the key and of its forms that `text` shows, from four characters on."""
    places = [KEY[at : at + 4] for at in range(8, len(KEY) - 4)]
    found = [part for part in places if part.lower() in text.lower()]
    for name in ("json", "python", "decimal entities", "hex entities", "percent", "base64", "hex"):
        form = FORMS[name]
        found += [form[at : at + 20] for at in range(40, len(form) - 20) if form[at:][:20] in text]
    return found


def quoting(asked: Asked) -> Answer:
    """What the prompt asks for: a kind of answer, a form of the key, and how much stands before."""
    kind, form, pad = asked.body["messages"][0]["content"].split("|")
    quote = "x" * int(pad) + " " + FORMS[form] + " and more"
    if kind == "text":
        return Answer(400, quote.encode(), {"Content-Type": "text/plain"})
    if kind == "page":
        page = f"<html><body>{quote}</body></html>".encode()
        return Answer(200, page, {"Content-Type": "text/html"})
    # The escapes of `json` are those of the JSON itself.
    message = '{"error": {"message": "' + quote.replace("\\x", "\\\\x") + '", "code": CODE}}'
    if kind == "json":
        return Answer(400, message.replace("CODE", "null").encode())
    assert kind == "inside"
    return Answer(200, message.replace("CODE", "503").encode())


@pytest.mark.parametrize("kind", ["text", "json", "page", "inside"])
def test_a_key_is_masked_before_its_message_is_cut(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    asked = [f"{kind}|{form}|{pad}" for form in FORMS for pad in PADS]
    given = rows(*({"prompt": text} for text in asked))
    with scripted(quoting) as server:
        where = ("--base-url", f"{server.url}/v1", "--max-retries", "0", "--limit", "90")
        told = cli("run", given, *where, "-o", "out.jsonl", "--log", "json")
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    failures = [json.loads(line) for line in Path("out.failed.jsonl").read_text().splitlines()]
    assert len(failures) == len(asked)
    for failure in failures:
        message = failure["error"]["message"]
        assert shown(message) == [], (failure["input"], message)
        if failure["input"]["prompt"].endswith("|60"):
            assert "<key>" in message, (failure["input"], message)
    assert shown(told.err) == []


def test_a_key_in_a_part_or_in_lines_is_masked(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    texts = [f"ends with {KEY[:20]}", f"begins with {KEY[20:]}", f"{KEY[:15]}\r\n  {KEY[15:]}"]

    def answer(asked: Asked) -> Answer:
        return Answer(400, {"detail": texts[int(asked.body["messages"][0]["content"])]})

    with scripted(answer) as server:
        given = rows(*({"prompt": str(number)} for number in range(3)))
        told = cli("run", given, "--base-url", f"{server.url}/v1", "-o", "out.jsonl")
    assert told.status == 1
    text = Path("out.failed.jsonl").read_text()
    assert text.count("<key>") >= 3
    assert shown(text + told.err) == []


async def test_an_error_within_a_stream_shows_no_key() -> None:
    for message in (f"{'x' * 290} {KEY}", f"a {FORMS['percent']}"):
        event = json.dumps({"error": {"message": message}})
        body = f'data: {{"choices": [{{"delta": {{"content": "a"}}}}]}}\n\ndata: {event}\n\n'
        answer = Answer(200, body.encode(), {"Content-Type": "text/event-stream"})
        with scripted(lambda _, answer=answer: answer) as server:
            endpoint = redline.Endpoint(base_url=f"{server.url}/v1", api_key=KEY)
            async with redline.Client(endpoint) as client:
                with pytest.raises(redline.RedlineError) as raised:
                    async for _ in client.stream({"model": "m", "messages": []}):
                        pass
        assert shown(str(raised.value)) == []


async def test_a_key_in_the_headers_of_one_request_is_masked() -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(400, {"error": {"message": f"bad {asked.headers['x-api-key']}"}})

    with scripted(answer) as server:
        async with redline.Client(redline.Endpoint(base_url=f"{server.url}/v1")) as client:
            request = redline.Request(
                url="/v1/chat/completions", body={"model": "m"}, headers={"X-Api-Key": KEY}
            )
            outcome = await client.call(request)
    assert outcome.error is not None
    assert outcome.error.what.endswith("HTTP 400: bad <key>")


def batches(lines: Callable[[str], dict[str, Any]]) -> Callable[[Asked], Answer]:
    """A Batch API that is done at once. lines: the result of a row, by its custom_id."""
    files: dict[str, bytes] = {}

    def answer(asked: Asked) -> Answer:
        batch = {"id": "b1", "status": "completed", "output_file_id": "out", "object": "batch"}
        if asked.path == "/v1/files":
            files["in"] = asked.body
            return Answer(200, {"id": "in"})
        if asked.path == "/v1/files/out/content":
            names = re.findall(rb'"custom_id": ?"([^"]+)"', files["in"])
            found = [json.dumps(lines(name.decode())).encode() + b"\n" for name in names]
            return Answer(200, b"".join(found))
        if asked.path.startswith("/v1/batches?"):
            return Answer(200, {"data": [], "has_more": False})
        return Answer(200, batch)

    return answer


def test_a_line_of_a_batch_that_quotes_the_key_is_masked(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    hostile = f"{'x' * 280} \x1b[31m\u202e {KEY}"

    def line(name: str) -> dict[str, Any]:
        body = {"error": {"message": hostile}}
        return {"custom_id": name, "response": {"status_code": 400, "body": body}, "error": None}

    given = rows({"prompt": "a"}, {"prompt": "b"})
    with scripted(batches(line)) as server:
        where = ("--base-url", f"{server.url}/v1", "--model", "m", "--via", "batch")
        told = cli("run", given, *where, "-o", "out.jsonl")
    text = Path("out.failed.jsonl").read_text()
    assert text.count("HTTP 400: xxx") == 2
    assert shown(text + told.err) == []
    assert not re.search("[\x1b\u202e]", text + told.err)


HOSTILE = (
    "\x1b[2J\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\ "
    "\x9b31m\x9d0;t\x9c \u202ertl\u2066 \u200bzero\ufeff \x00nul\x08\x7f \U000e0041tag \r\nline"
)
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\U000e0000-\U000e007f]"
)


@pytest.mark.parametrize("log", ["text", "json"])
@pytest.mark.parametrize("output", [("-o", "out.jsonl"), ()])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(400, {"error": {"message": HOSTILE}}),
        Answer(401, {"error": {"message": HOSTILE}}),
        Answer(200, {"error": {"message": HOSTILE}}),
        Answer(200, f"<html>{HOSTILE}".encode()),
        Answer(500, HOSTILE.encode()),
    ],
)
def test_what_a_server_says_is_safe_to_print(
    cli: Cli, rows: Rows, answer: Answer, output: tuple[str, ...], log: str
) -> None:
    with scripted(lambda _: answer) as server:
        where = ("--base-url", f"{server.url}/v1", "--max-retries", "0", "--log", log)
        told = cli("run", rows({"prompt": "a"}), *where, *output)
    assert "red" in told.err
    assert "[31m" not in told.err
    written = [path.read_text() for path in Path().glob("out.failed.jsonl")]
    for text in (told.err, *written):
        assert UNSAFE.search(text) is None, text
        for line in text.splitlines():
            if line.startswith("{"):
                assert UNSAFE.search(str(json.loads(line))) is None, line


def test_an_answer_on_a_terminal_is_escaped_and_stays_the_same(rows: Rows) -> None:
    """Its JSON says the same, and nothing in it reaches the terminal raw."""
    given = rows({"prompt": "a"})
    ours, theirs = pty.openpty()
    with scripted(lambda _: Answer(200, completion(HOSTILE))) as server:
        command = ("-m", "redline", "run", given, "--base-url", f"{server.url}/v1", "-q")
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "NO_COLOR": "1"},
        )
        os.close(theirs)
        raw = b""
        try:
            while piece := os.read(ours, 65_536):
                raw += piece
        except OSError:
            # The other end of the terminal is closed.
            pass
        assert process.wait() == 0
    os.close(ours)
    line = raw.decode().strip()
    assert UNSAFE.search(line) is None
    assert json.loads(line)["output"] == HOSTILE
