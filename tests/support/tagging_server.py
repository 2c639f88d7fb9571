"""A model that tags, and answers some rows as models do: in fences, in prose, wrongly, not at all.

How it answers a text is decided by the text alone, so a test knows it beforehand.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

from support.raw_server import RawServer, Seen, answer, chat

USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
# How a text is answered, by so many of a hundred texts; the rest is answered with the tag alone.
MANNERS = {
    "fence": 8,
    "prose": 8,
    "bare": 4,
    "case": 4,
    "reasoning": 4,
    # Right the second time.
    "wrong label": 5,
    "broken": 4,
    "empty": 3,
    # Right the third time.
    "twice": 2,
    # Never right.
    "stubborn": 2,
    "refusal": 1,
    # An HTTP answer without a body.
    "nothing": 1,
}
_WRONG = '{"label": "no such label"}'
_PAUSE = "Let me think about it again."


class Expected(NamedTuple):
    """What becomes of a text where two re-asks are allowed. label: None where its row fails."""

    label: str | None
    reasks: int
    reason: str = ""


class TaggingModel:
    """labels: what it chooses from. seed: another one gives other answers. latency_s: of each."""

    def __init__(self, labels: Sequence[str], seed: int = 0) -> None:
        self.labels = list(labels)
        self.seed = seed
        self.latency_s = 0.0
        self.asked = 0
        self.refused_formats = 0

    def label(self, text: str) -> str:
        """The label that it thinks right."""
        return self.labels[self._draw(text, "label") % len(self.labels)]

    def manner(self, text: str) -> str:
        """How it answers."""
        at = self._draw(text, "manner") % 100
        for name, share in MANNERS.items():
            at -= share
            if at < 0:
                return name
        return "plain"

    def expected(self, text: str) -> Expected:
        """What the row of this text comes to."""
        match self.manner(text):
            case "wrong label" | "broken" | "empty":
                return Expected(self.label(text), 1)
            case "twice":
                return Expected(self.label(text), 2)
            case "stubborn":
                return Expected(None, 2, "no valid answer in 3 tries; the last: label is")
            case "refusal":
                return Expected(None, 0, "the model refused to answer")
            case "nothing":
                return Expected(
                    None, 0, "the answer does not match the format of /v1/chat/completions"
                )
            case _:
                return Expected(self.label(text), 0)

    async def handle(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = json.loads(seen.body)
        self.asked += 1
        if "response_format" in body:
            self.refused_formats += 1
            error = {"error": {"message": "response_format is not supported"}}
            writer.write(answer(error, 400))
            return
        messages = body["messages"]
        await asyncio.sleep(self.latency_s)
        text = next(message["content"] for message in messages if message["role"] == "user")
        shown = [message["content"] for message in messages if message["role"] == "assistant"]
        writer.write(self._answer(text, shown))

    def _answer(self, text: str, shown: list[str]) -> bytes:
        """shown: the answer of before, where it is asked again."""
        tag = json.dumps({"label": self.label(text)})
        manner = self.manner(text)
        if manner == "nothing":
            return answer(b"")
        if manner == "refusal":
            message = {"content": None, "refusal": "I cannot help with that."}
            return answer(
                {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}
            )
        first = {
            "wrong label": _WRONG,
            "broken": tag[:-2],
            "empty": "",
            "twice": _WRONG,
        }.get(manner, tag)
        said = {
            "fence": f"```json\n{tag}\n```",
            "prose": f"The customer asks for help, so I would say:\n\n{tag}\n\nAnything else?",
            "bare": self.label(text),
            "case": tag.upper().replace("LABEL", "label"),
            "reasoning": f"<think>Perhaps {_WRONG}? No.</think>{tag}",
            "stubborn": _WRONG,
        }.get(manner, tag if shown else first)
        if manner == "twice" and shown == [_WRONG]:
            said = _PAUSE
        return answer(chat(said, usage=USAGE))

    def _draw(self, text: str, what: str) -> int:
        key = f"{self.seed} {what} {text}".encode()
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


@contextmanager
def tagging(model: TaggingModel) -> Iterator[str]:
    """The base URL of a server with this model, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = RawServer(model.handle)
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
        try:
            yield server.base_url
        finally:
            ended = server.__aexit__(None, None, None)
            asyncio.run_coroutine_threadsafe(ended, loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
