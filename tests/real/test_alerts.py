"""An alert of a real job: on the screen, as events, and at a webhook that fails first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import redline
from support.starting import free_port

pytestmark = [pytest.mark.real]


class Hook(BaseHTTPRequestHandler):
    """Refuses the first notification."""

    asked: list[Any]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        self.send_response(500 if len(self.asked) == 1 else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_an_alert_fires_once_and_ends_once(tmp_path: Path) -> None:
    asked: list[Any] = []
    hook = type("_Hook", (Hook,), {"asked": asked})
    with HTTPServer(("127.0.0.1", 0), hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rows = "".join(f'{{"prompt": "Say {n}"}}\n' for n in range(120))
        (tmp_path / "in.jsonl").write_text(rows)
        (tmp_path / "redline.toml").write_text(
            "[alerts]\n"
            f'webhook = "http://127.0.0.1:{server.server_port}/secret"\n'
            'rows_per_s = { below = 1000, for = "1s" }\n'
        )
        command = [sys.executable, "-m", "redline", "run", "in.jsonl", "--endpoint", "sim"]
        command += ["--rps", "20", "-o", "out.jsonl", "--log", "json"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    alerts = [line for line in lines if line["event"] == "alert"]
    assert [line["state"] for line in alerts] == ["firing", "ended"]
    shown = [line["notices"] for line in lines if line["event"] == "progress"]
    assert any("rows/s below 1,000" in one.get("alert rows_per_s", "") for one in shown)
    assert "secret" not in done.stderr
    first, again, last = asked
    assert first == again
    assert (first["state"], last["state"]) == ("firing", "ended")
    assert first["job"]["output"] == "out.jsonl"
    assert "rule of thumb: a higher limit" in first["text"]
    assert first["id"] != last["id"]


def test_an_output_whose_name_is_not_utf_8_has_its_notifications(tmp_path: Path) -> None:
    # None stands for the first notification, which a Hook refuses.
    asked: list[Any] = [None]
    hook = type("_Hook", (Hook,), {"asked": asked})
    with HTTPServer(("127.0.0.1", 0), hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        report = redline.run(
            [{"prompt": f"Say {n}"} for n in range(70)],
            endpoint="sim",
            rps=20,
            output=tmp_path / os.fsdecode(b"out-\xe9.jsonl"),
            alerts={
                "webhook": f"http://127.0.0.1:{server.server_port}",
                "rows_per_s": {"below": 1000, "for": "1s"},
            },
        )
        server.shutdown()
    assert report.not_notified is None
    assert [one["state"] for one in asked[1:]] == ["firing", "ended"]
    assert asked[1]["job"]["output"].endswith("out-\ufffd.jsonl")


def test_what_a_job_waits_for_its_webhook_is_not_its_time() -> None:
    begun_s = time.monotonic()
    report = redline.run(
        [{"prompt": f"Say {n}"} for n in range(70)],
        endpoint="sim",
        rps=20,
        alerts={
            "webhook": f"http://127.0.0.1:{free_port()}",
            "rows_per_s": {"below": 1000, "for": "1s"},
        },
    )
    whole_s = time.monotonic() - begun_s
    assert report.succeeded == 70
    assert "did not reach the webhook" in (report.not_notified or "")
    assert report.elapsed_s < whole_s - 2.9
