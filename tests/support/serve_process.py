"""A running `redline serve`."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import openai

from support.forked import Command


class Serve:
    """The command in a process of its own, while it is entered.

    flags: of the command line, to which `--port 0` and `--state` are added. toml: redline.toml.
    """

    def __init__(self, folder: Path, *flags: str, toml: str = "") -> None:
        self.folder = folder
        self._flags = flags
        if toml:
            self.write(toml)
        self.url = ""
        self._clients: list[openai.OpenAI] = []

    def client(self, key: str = "none", **facts: Any) -> openai.OpenAI:
        """A client that does not retry. Closed at the end."""
        made = openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, **facts)
        self._clients.append(made)
        return made

    def write(self, toml: str) -> None:
        (self.folder / "redline.toml").write_text(toml, "utf-8")

    def __enter__(self) -> Self:
        self.process = Command(["serve", "--port", "0", *self._flags], cwd=self.folder)
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            _, err = self.process.communicate(timeout=30)
            raise AssertionError(err)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=30)

    def page(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a page, such as /readyz."""
        try:
            with urllib.request.urlopen(self.url.removesuffix("/v1") + path, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its status and stderr, after this signal."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.wait(), err


def keys_of(folder: Path, *tenants: str) -> dict[str, str]:
    """A new key of each."""
    found = {}
    for tenant in tenants:
        out, err = Command(["keys", "add", tenant], cwd=folder).communicate()
        assert out, err
        found[tenant] = out.split()[0]
    return found
