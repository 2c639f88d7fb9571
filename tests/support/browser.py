"""Headless Chromium over a pipe, by the Chrome DevTools Protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = shutil.which("chromium")
# The name of a folder: screenshots are kept there, for people to look at.
KEPT = "REDLINE_SCREENSHOTS"
_LONGEST_S = 100.0


class Browser:
    """One page of a browser of its own, as a context manager. messages: of its console.

    requests: URLs that the page asked for. Each `open` clears both.
    """

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        read, self._out = os.pipe()
        self._in, write = os.pipe()
        flags = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        )
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", PROGRAM, *flags],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._data, self._number, self._session = b"", 0, ""
        self.messages: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Browser:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command; events before it are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self._note(found)

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Loads the file, and waits until it is drawn."""
        self.visit(path.as_uri(), width, dark=dark)

    def visit(self, url: str, width: int, *, dark: bool = False) -> None:
        """The same of a page with this URL."""
        self.look(width, dark=dark)
        self.messages.clear()
        self.requests.clear()
        self.ask("Page.navigate", url=url)
        while not self.run("document.readyState === 'complete'"):
            time.sleep(0.02)
        self._settle()

    def look(self, width: int, *, dark: bool) -> None:
        """The page on a screen this wide, in a light or a dark scheme."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._settle()

    def _settle(self) -> None:
        """Waits for two frames, in which what was changed is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise it is."""
        found = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def keep(self, name: str) -> None:
        """Keeps a screenshot under this name, if the environment names a folder for them."""
        if folder := os.environ.get(KEPT):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.screenshot(Path(folder) / f"{name}.png")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._in], [], [], _LONGEST_S)
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._data += data
        line, _, self._data = self._data.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.messages.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.messages.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
