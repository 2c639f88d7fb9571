"""A model server that is started as a replica, with moods; and what is left of its processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from redline.route.scale import LocalReplica

# python server.py PORT MOOD [FOLDER]
SERVER = """
import http.server, json, os, signal, subprocess, sys, time

port, mood, folder = int(sys.argv[1]), sys.argv[2], (sys.argv[3:] or [""])[0]
if mood == "exits":
    print("loading", flush=True)
    sys.exit("ValueError: there is no such model; key " + os.environ.get("MODEL_API_KEY", ""))
if mood == "deaf":
    deaf = "trap '' TERM; echo $$ > %s/{}; exec sleep 300" % folder
    subprocess.Popen(["setsid", "sh", "-c", deaf.format("of-session")])
    subprocess.Popen(["sh", "-c", "(" + deaf.replace("$$", "$(exec sh -c 'echo $PPID')").format(
        "orphan") + ") & exit 0"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"{folder}/itself", "w").write(str(os.getpid()))
if mood == "silent":
    time.sleep(300)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if mood == "hangs":
            time.sleep(300)
        if mood.startswith("slow"):
            time.sleep(float(mood.split()[1]))
        message = {"role": "assistant", "content": json.dumps([os.environ.get("SLOT"), port])}
        done = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        status, answer = 200, {"object": "chat.completion", "model": asked["model"], **done}
        said = "500" if asked["model"] == "500" else mood
        if said in ("500", "404"):
            status, answer = int(said), {"error": {"message": f"no {asked['model']} here"}}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def replica(folder: Path, mood: str = "works", **settings: Any) -> LocalReplica:
    """A replica that runs SERVER in this mood."""
    server = folder / "server.py"
    server.write_text(SERVER, "utf-8")
    command = (sys.executable, "-I", "-S", str(server), "{port}", mood, str(folder))
    fields = {"model": "m", "logs": folder / "logs", "start_s": 20.0, **settings}
    return LocalReplica(command=fields.pop("command", command), **fields)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False
    # Where no process 1 collects the dead, orphans stay on as such.
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def pids_in(folder: Path, *names: str, within_s: float = 10.0) -> list[int]:
    """The numbers of processes that are noted in files of these names, once they are there."""
    until_s = time.monotonic() + within_s
    while True:
        texts = [(folder / name).read_text() if (folder / name).exists() else "" for name in names]
        if all(text.strip() for text in texts):
            return [int(text) for text in texts]
        assert time.monotonic() < until_s, f"not there: {names}"
        time.sleep(0.02)


def gone_within(pids: list[int], most_s: float) -> bool:
    """None of them runs any more before this time is over."""
    until_s = time.monotonic() + most_s
    while any(map(is_running, pids)):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


def processes_of(folder: Path) -> list[int]:
    """Running processes whose command line names the folder, but for this one."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                is_named = str(folder).encode() in (path / "cmdline").read_bytes()
            except OSError:
                continue
            if is_named and is_running(int(path.name)):
                found.append(int(path.name))
    return found


def server_of(folder: Path, name: str, logs: str = "logs") -> int:
    """The process that writes the log of a replica, and is not its guardian."""
    log = folder / logs / f"{name}.log"
    for path in Path("/proc").iterdir():
        try:
            is_guardian = b"guardian.py" in (path / "cmdline").read_bytes()
            if not is_guardian and (path / "fd" / "1").readlink() == log:
                return int(path.name)
        except OSError:
            continue
    raise AssertionError(f"no process writes {log}")
