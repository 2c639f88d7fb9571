"""`redline serve --workers N`: one address, one set of limits, and workers that may be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest

from support.serve_process import Serve, keys_of
from support.sim_process import SimProcess, fleet_of
from support.until import wait_until
from support.worker_lines import Line, Load, close_lines, lines_on_one, workers_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("no_proxy"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc"),
]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_lines()


def processes_below(pid: int) -> list[int]:
    """Those that it has started, in the order of their start."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return sorted(map(int, path.read_text().split()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def has(pid: int, line: Line) -> bool:
    """The process has the other end of the connection."""
    server, client = line.ports
    ends = f":{server:04X} ", f":{client:04X} 01"
    inodes = {
        row.split()[9]
        for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        if all(end in row for end in ends)
    }
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    return any(link.removeprefix("socket:[").removesuffix("]") in inodes for link in links)


def spread(url: str, count: int, key: str = "") -> list[Line]:
    """So many connections to each of two workers."""
    return [line for name in workers_of(url, 2) for line in lines_on_one(url, count, name, key)]


RATE = 50
# Of a limit, at least, in the whole of a run after its first seconds.
USED = 0.97
SETTLED_S, RUN_S = 5.0, 15.0


@pytest.mark.timeout(240)
def test_a_rate_is_not_passed_and_is_used_wherever_the_connections_are(tmp_path: Path) -> None:
    flags = ("--requests", f"{RATE}/1s")
    # It refuses a call that is over in any window.
    with SimProcess("--algorithm", "moving", *flags) as sim:

        def check(lines: list[Line]) -> None:
            with Load(lines) as load:
                # The guard is measured meanwhile.
                wait_until(lambda: load.statuses[200] > 2 * RATE)
                time.sleep(SETTLED_S)
                before, began_s = sim.stats()["received"], time.monotonic()
                time.sleep(RUN_S)
                after, ended_s = sim.stats()["received"], time.monotonic()
            assert set(load.statuses) == {200}
            used = (after - before) / (ended_s - began_s) / RATE
            assert used >= USED, used

        with Serve(tmp_path, "--workers", "2", "--endpoint", sim.base_url, *flags) as serve:
            check(lines_on_one(serve.url, 30))
            check(spread(serve.url, 15))
        stats = sim.stats()
    assert stats["by_status"] == {"200": stats["received"]}


def test_slots_are_shared_and_one_worker_may_have_them_all(tmp_path: Path) -> None:
    with (
        SimProcess("--latency", "0.2") as sim,
        Serve(tmp_path, "--workers", "2", "--endpoint", sim.base_url, "-c", "8") as serve,
    ):
        with Load(lines_on_one(serve.url, 24)) as alone:
            wait_until(lambda: sum(alone.statuses.values()) > 60)
        # One is kept free of all but the highest class.
        assert sim.stats()["most_in_flight"] in (7, 8)
        with Load(spread(serve.url, 16)) as both:
            wait_until(lambda: sum(both.statuses.values()) > 60)
        assert sim.stats()["most_in_flight"] in (7, 8)
        assert set(alone.statuses) | set(both.statuses) == {200}


HELLO = {"role": "user", "content": "hello " * 20}
TENANTS = """
    [serve]
    keys = "keys.jsonl"
    workers = 2
    drain = "2s"
    concurrency = 6
    endpoint = "{url}"
    [tenants.few]
    requests = "10/1h"
    [tenants.narrow]
    concurrency = 4
    [tenants.terse]
    tokens = "800/1h"
"""


def test_tenants_have_their_limits_once_and_not_for_each_worker(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "few", "narrow", "terse")
    with SimProcess("--latency", "0.3") as sim:
        with Serve(tmp_path, toml=TENANTS.format(url=sim.base_url)) as serve:
            lines = spread(serve.url, 8, keys["few"])
            statuses = [line.ask() for _ in range(2) for line in lines]
            assert sorted(statuses) == [200] * 10 + [429] * 22
            used = 0
            for line in spread(serve.url, 4, keys["terse"]):
                for _ in range(10):
                    ask = {"model": "m", "max_tokens": 40, "messages": [HELLO]}
                    status, answer = line.post(ask)
                    used += answer["usage"]["total_tokens"] if status == 200 else 0
                assert status in (200, 429)
            assert 300 < used <= 800
            with Load(spread(serve.url, 8, keys["narrow"])) as load:
                wait_until(lambda: load.statuses[200] > 20)
            assert set(load.statuses) == {200, 429}
        assert sim.stats()["most_in_flight"] == 4


def test_a_worker_that_is_killed_leaks_nothing_and_is_replaced(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "few", "narrow")
    with (
        SimProcess("--latency", "30") as sim,
        Serve(tmp_path, toml=TENANTS.format(url=sim.base_url)) as serve,
    ):
        workers = processes_below(serve.process.pid)
        names = workers_of(serve.url, 2)
        lines = [
            *lines_on_one(serve.url, 2, names[0], keys["few"]),
            *lines_on_one(serve.url, 2, names[0], keys["narrow"]),
            *lines_on_one(serve.url, 2, names[1], keys["narrow"]),
        ]
        other = lines_on_one(serve.url, 1, names[1], keys["narrow"])[0]
        few = lines_on_one(serve.url, 1, names[1], keys["few"])[0]
        load = Load(lines)
        with load:
            # All six slots, and all that `narrow` may have at once.
            wait_until(lambda: sim.stats()["in_flight"] == 6)
            assert other.ask() == 429
            sim.disturb(latency="0.01")
            killed = [pid for pid in workers if has(pid, lines[0])]
            assert len(killed) == 1
            os.kill(killed[0], signal.SIGKILL)
            began_s = time.monotonic()
            wait_until(lambda: other.ask() == 200)
            assert time.monotonic() - began_s < 5
            # What it had in flight is lost, and its clients see that.
            wait_until(lambda: load.statuses[0] == 4)
            # What it began is spent: two of the ten of `few`.
            assert [few.ask() for _ in range(10)] == [200] * 8 + [429] * 2
            wait_until(lambda: len(processes_below(serve.process.pid)) == 2)
            new = next(name for name in workers_of(serve.url, 2) if name != names[1])
            assert lines_on_one(serve.url, 1, new, keys["few"])[0].ask() == 429
            load.end()
            workers = processes_below(serve.process.pid)
            os.kill(serve.process.pid, signal.SIGKILL)
            serve.process.communicate()
            wait_until(lambda: not any(map(is_running, workers)))


def test_hangup_reaches_all_workers_and_sigterm_drains_all(tmp_path: Path) -> None:
    toml = """
        [serve]
        workers = 2
        [endpoints.one]
        base_url = "{url}"
        models = {{ {names} }}
    """
    with SimProcess("--latency", "0.2") as sim:
        first = toml.format(url=sim.base_url, names='a = "m"')
        with Serve(tmp_path, toml=first) as serve:
            names = workers_of(serve.url, 2)
            lines = [lines_on_one(serve.url, 1, name)[0] for name in names]
            assert [line.post({"model": "b"})[0] for line in lines] == [404, 404]
            serve.write(toml.format(url=sim.base_url, names='m = "m", b = "m"'))
            serve.process.send_signal(signal.SIGHUP)
            wait_until(lambda: all(line.ask(model="b") == 200 for line in lines))
            with Load(spread(serve.url, 8)) as load:
                wait_until(lambda: load.statuses[200] > 30)
                status, err = serve.end()
            assert status == 0, err
            # A connection is closed behind its last answer; that is no broken call.
            assert set(load.statuses) == {200, 0}
            assert load.statuses[0] == 16
        assert sim.stats()["answered"] == sim.stats()["received"]
        assert err.count("settings read: ") == err.count("changed endpoints: one") == 1


def test_a_hangup_while_workers_start_ends_none_of_them(tmp_path: Path) -> None:
    class Early(Serve):
        def __enter__(self) -> Early:
            entering = threading.Thread(target=super().__enter__)
            entering.start()
            wait_until(lambda: hasattr(self, "process") and processes_below(self.process.pid))
            self.process.send_signal(signal.SIGHUP)
            entering.join()
            return self

    with (
        SimProcess() as sim,
        Early(tmp_path, "--workers", "2", "--endpoint", sim.base_url) as serve,
    ):
        assert serve.url
        workers_of(serve.url, 2)
        status, err = serve.end()
    assert status == 0
    assert "settings read: nothing has changed" in err


def test_the_bound_of_a_pool_holds_while_endpoints_join_and_leave(tmp_path: Path) -> None:
    with fleet_of(3, "--latency", "0.1") as (one, two, three):

        def toml(**endpoints: tuple[SimProcess, str]) -> str:
            heads = "[serve]\nworkers = 2\nconcurrency = 4\n"
            return heads + "".join(
                f'[endpoints.{name}]\nbase_url = "{sim.base_url}"\nmodels = {{ {models} }}\n'
                for name, (sim, models) in endpoints.items()
            )

        usual = 'm = "sim"'
        with Serve(tmp_path, toml=toml(one=(one, usual), two=(two, usual))) as serve:
            lines = spread(serve.url, 8)
            with Load(lines) as load:
                wait_until(lambda: load.statuses[200] > 16)
                # The first endpoint leaves, and a model joins that comes before the others.
                wider = f'a = "sim", {usual}'
                serve.write(toml(two=(two, usual), three=(three, wider)))
                serve.process.send_signal(signal.SIGHUP)
                wait_until(lambda: three.stats()["answered"] > 0)
                wait_until(lambda: one.stats()["in_flight"] == 0)
                before, began_s = load.statuses[200], time.monotonic()
                time.sleep(2.0)
                rate = (load.statuses[200] - before) / (time.monotonic() - began_s)
            # Four at once take 0.1 s each.
            assert 20 <= rate <= 42
            assert serve.end()[0] == 0


def test_what_binds_is_said_of_the_calls_of_all_workers(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.2") as sim:
        toml = f"""
            [endpoints.one]
            base_url = "{sim.base_url}"
            concurrency = 2
        """

        def waiting() -> int:
            sentence = serve.page("/status")[1]["binding"]["sentence"]
            found = re.search(r"(\d+) calls? waits?", sentence)
            return int(found[1]) if found else 0

        with (
            Serve(tmp_path, "--workers", "2", toml=toml) as serve,
            Load(spread(serve.url, 10)),
        ):
            # More than one worker has.
            wait_until(lambda: waiting() > 10)


def test_of_the_bound_of_a_pool_some_is_kept_free_of_lower_classes(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.2") as sim:
        # Two endpoints, so that the bound is below the sum of their slots.
        urls = (sim.base_url, sim.base_url.replace("127.0.0.1", "localhost"))
        flags = [flag for url in urls for flag in ("--endpoint", url)]
        toml = '[tenants.default]\nclasses = ["high"]\n'
        with Serve(tmp_path, "--workers", "2", "-c", "10", *flags, toml=toml) as serve:
            lines = spread(serve.url, 12)
            # Slots are kept free of lower classes once a class has been used.
            for line in lines:
                assert line.ask(service_tier="priority") == 200
            with Load(lines) as load:
                wait_until(lambda: serve.page("/status")[1]["waiting"] > 8)
                wait_until(lambda: sum(load.statuses.values()) > 100)
                binding = serve.page("/status")[1]["binding"]
            assert sim.stats()["most_in_flight"] == 9
    assert binding["cause"] == "concurrency"
    assert "-c allows 10 calls in flight." in binding["sentence"]


def test_hangup_changes_the_bound_that_workers_share(tmp_path: Path) -> None:
    with SimProcess("--latency", "0.1") as sim:

        def toml(most: int) -> str:
            # The endpoint's own settings do not change.
            endpoint = f'[endpoints.one]\nbase_url = "{sim.base_url}"\nconcurrency = 40\n'
            return f"[serve]\nworkers = 2\nconcurrency = {most}\n{endpoint}"

        with Serve(tmp_path, toml=toml(8)) as serve, Load(spread(serve.url, 8)) as load:
            wait_until(lambda: sim.stats()["in_flight"] == 8)
            serve.write(toml(3))
            serve.process.send_signal(signal.SIGHUP)
            # The calls in flight end first.
            wait_until(lambda: sim.stats()["in_flight"] <= 3)
            seen = 0
            until_s = time.monotonic() + 2.0
            while time.monotonic() < until_s:
                seen = max(seen, sim.stats()["in_flight"])
                time.sleep(0.01)
            assert seen in (2, 3)
            serve.write(toml(8))
            serve.process.send_signal(signal.SIGHUP)
            wait_until(lambda: sim.stats()["in_flight"] > 3)
            assert set(load.statuses) == {200}
            status, err = serve.end()
    assert status == 0
    assert err.count("settings read: concurrency changed") == 2


def test_what_all_workers_note_is_said_once(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("not a variable\n")
    flags = ("--workers", "3", "--endpoint", "http://127.0.0.1:9/v1")

    def changes() -> list[str]:
        return [one["what"] for one in serve.page("/status")[1]["changes"]]

    with Serve(tmp_path, *flags) as serve:
        serve.process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(changes()))
        # By then, each worker has published its state.
        time.sleep(2.5)
        assert changes() == ["settings read: nothing has changed"]
        _, err = serve.end()
    assert err.count("note: .env: line 1 is skipped") == 2, "at the start, and after the signal"


def test_files_and_batches_are_one_shelf_whichever_worker_is_asked(tmp_path: Path) -> None:
    with (
        SimProcess() as sim,
        Serve(tmp_path, "--workers", "2", "--endpoint", sim.base_url) as serve,
    ):
        names = workers_of(serve.url, 2)
        rows = [
            {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": [{"role": "user", "content": "x" * 5_000}]},
            }
            for number in range(200)
        ]
        (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
        # A new connection for each request.
        client = serve.client(default_headers={"connection": "close"})
        files = []
        for _ in range(6):
            with (tmp_path / "in.jsonl").open("rb") as file:
                files.append(client.files.create(file=file, purpose="batch"))
        listed = [lines_on_one(serve.url, 1, name)[0].get("/v1/files") for name in names]
        assert [len(answer["data"]) for answer in listed] == [6, 6]
        batch = client.batches.create(
            input_file_id=files[0].id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed")
        done = client.batches.retrieve(batch.id)
        assert done.output_file_id is not None
        for _ in range(4):
            lines = client.files.content(done.output_file_id).text.splitlines()
            assert {json.loads(line)["custom_id"] for line in lines} == {
                row["custom_id"] for row in rows
            }
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve("file-none")


def test_an_upload_through_any_worker_takes_as_much_room_as_it_states(tmp_path: Path) -> None:
    form = b"\r\n".join(
        (
            *(b"--x", b'Content-Disposition: form-data; name="purpose"', b"", b"batch"),
            *(b"--x", b'Content-Disposition: form-data; name="file"; filename="a"', b"", b"{}"),
            b"--x--",
            b"",
        )
    )
    head = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(form)
    head += b"content-type: multipart/form-data; boundary=x\r\nconnection: close\r\n\r\n"
    toml = """
        [serve]
        workers = 2
        endpoint = "{url}"
        [serve.batches]
        stored = "300m"
        uploads = 24
    """
    with SimProcess() as sim, Serve(tmp_path, toml=toml.format(url=sim.base_url)) as serve:
        workers_of(serve.url, 2)
        address = urlsplit(serve.url)
        # Which worker gets a connection is left to the kernel: with 24, each gets some.
        clients = [
            socket.create_connection((address.hostname, address.port), 60) for _ in range(24)
        ]
        # All are under way at once.
        for client in clients:
            client.sendall(head + form[:60])
        time.sleep(0.5)
        answers = list[bytes]()
        for client in clients:
            client.sendall(form[60:])
            with client, client.makefile("rb") as answer:
                answers.append(answer.readline().split()[1])
        assert answers == [b"200"] * 24


def test_what_calls_of_each_worker_cost_is_saved_at_the_end(tmp_path: Path) -> None:
    toml = """
        [serve]
        workers = 2
        keys = "keys.jsonl"
        endpoint = "{url}"
        [tenants.team]
        money_per_day = "100usd"
        [prices.m]
        input = 1
        output = 1000
    """
    key = keys_of(tmp_path, "team")["team"]
    with (
        SimProcess("--latency", "2") as sim,
        Serve(tmp_path, toml=toml.format(url=sim.base_url)) as serve,
    ):
        lines = spread(serve.url, 1, key)
        message = {"role": "user", "content": "hello"}
        asked = {"model": "m", "max_tokens": 5_000, "messages": [message]}
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(line.post, asked) for line in lines]
            wait_until(lambda: sim.stats()["in_flight"] == 2)
            assert serve.end()[0] == 0
        usage = [answer.result()[1]["usage"] for answer in answers]
    cost = sum(one["prompt_tokens"] + 1000 * one["completion_tokens"] for one in usage) / 1e6
    spent = json.loads((tmp_path / "keys.spent.json").read_text("utf-8"))["dollars"]
    assert float(spent["team"]) == pytest.approx(cost)


def test_each_worker_answers_requests_of_http_1_0_for_files(tmp_path: Path) -> None:
    with (
        SimProcess() as sim,
        Serve(tmp_path, "--workers", "2", "--endpoint", sim.base_url) as serve,
    ):
        address = urlsplit(serve.url)
        # Which worker gets a connection is left to the kernel: with 24, each gets some.
        asked = Counter[bytes]()
        for _ in range(24):
            with socket.create_connection((address.hostname, address.port), 60) as client:
                client.sendall(b"GET /v1/files HTTP/1.0\r\n\r\n")
                with client.makefile("rb") as answer:
                    asked[answer.readline().split()[1]] += 1
                    assert b'"object":"list"' in answer.read()
        assert asked == {b"200": 24}


def test_each_worker_says_why_it_refuses_an_upload(tmp_path: Path) -> None:
    toml = """
        [serve]
        workers = 2
        endpoint = "{url}"
        [serve.batches]
        file_size = "1k"
    """
    with SimProcess() as sim, Serve(tmp_path, toml=toml.format(url=sim.base_url)) as serve:
        workers_of(serve.url, 2)
        # Which worker gets a connection is left to the kernel: with 24, each gets some.
        for _ in range(24):
            with pytest.raises(openai.APIStatusError, match="longer than") as caught:
                serve.client().files.create(file=b"x" * 2**21, purpose="batch")
            assert caught.value.status_code == 413


def test_metrics_and_status_are_those_of_all_workers(tmp_path: Path) -> None:
    with (
        SimProcess() as sim,
        Serve(tmp_path, "--workers", "2", "--endpoint", sim.base_url) as serve,
    ):
        for line in spread(serve.url, 3):
            assert line.ask() == 200
        asked = [lines_on_one(serve.url, 1, name)[0] for name in workers_of(serve.url, 2)]
        for line in asked:
            wait_until(lambda line=line: line.get("/status")["tenants"][0]["calls"] == 6)
            text = line.text("/metrics")
            found = [one for one in text.splitlines() if one.startswith("redline_requests_total")]
            assert found[0].endswith(" 6.0")
            assert "redline_build_info" in text


def test_no_counter_goes_back_when_a_worker_is_lost(tmp_path: Path) -> None:
    def answered(line: Line) -> list[str]:
        lines = line.text("/metrics").splitlines()
        return [one.split()[-1] for one in lines if one.startswith("redline_serve_requests_total")]

    with (
        SimProcess() as sim,
        Serve(tmp_path, "--workers", "2", "--endpoint", sim.base_url) as serve,
    ):
        names = workers_of(serve.url, 2)
        lost, other = (lines_on_one(serve.url, 1, name)[0] for name in names)
        workers = processes_below(serve.process.pid)
        assert [lost.ask() for _ in range(5)] == [200] * 5
        assert answered(lost) == ["5.0"]
        killed = next(pid for pid in workers if has(pid, lost))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not is_running(killed))
        assert answered(other) == ["5.0"]
        new = next(name for name in workers_of(serve.url, 2) if name not in names)
        assert answered(lines_on_one(serve.url, 1, new)[0]) == ["5.0"]


def test_an_endpoint_has_one_state_though_only_one_worker_knows_that_it_fails(
    tmp_path: Path,
) -> None:
    with (
        SimProcess() as sim,
        Serve(tmp_path, "--workers", "2", "--endpoint", sim.base_url) as serve,
    ):
        first, other = spread(serve.url, 1)
        sim.kill()

        def is_ready() -> bool:
            first.ask()
            return first.get("/status")["endpoints"][0]["state"] == "ready"

        wait_until(lambda: not is_ready())
        for line in (first, other):
            page = line.text("/metrics").splitlines()
            states = [one for one in page if one.startswith("redline_endpoint_state{")]
            [state] = [one for one in states if one.endswith(" 1.0")]
            assert 'kind="ready"' not in state


def test_settings_that_cannot_be_served_end_all_with_the_reason(tmp_path: Path) -> None:
    with SimProcess() as sim, Serve(tmp_path, "--endpoint", sim.base_url) as serve:
        port = serve.url.rpartition(":")[2].partition("/")[0]
        place = tmp_path / "other"
        place.mkdir()
        command = [sys.executable, "-m", "redline", "serve", "--workers", "2", "--port", port]
        done = subprocess.run(
            [*command, "--endpoint", sim.base_url],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert "cannot listen" in done.stderr
    assert done.stdout == ""


def test_a_worker_that_is_killed_while_it_starts_ends_all_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "utf-8"
    )
    command = [sys.executable, "-m", "redline", "serve", "--workers", "2", "--port", "0"]
    done = subprocess.run(
        [*command, "--function", "large:embed"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (137, "")
    assert "worker 1 ended with status 137 before it could serve" in done.stderr


def test_the_efficiency_of_batches_is_that_of_all_workers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def same(items):\n    return items\n", "utf-8")
    flags = ("--workers", "2", "--function", "mine:same", "--max-batch-size", "4")
    with Serve(tmp_path, *flags) as serve:
        lines = spread(serve.url, 1)
        for line, items in zip(lines, ("abcd", "ab"), strict=True):
            assert line.post({"input": [*items]}, "/v1/same")[0] == 200
        share = 'redline_batch_efficiency_ratio{model="same"} 0.75'
        for line in lines:
            wait_until(lambda line=line: share in line.text("/metrics"))


def test_a_served_function_may_print(tmp_path: Path) -> None:
    (tmp_path / "talking.py").write_text(
        "print('loaded')\n"
        "def embed(texts):\n"
        "    print('x' * 200_000, flush=True)\n"
        "    return [[1.0] for _ in texts]\n",
        "utf-8",
    )
    with Serve(tmp_path, "--workers", "2", "--function", "talking:embed") as serve:
        stdout = serve.process.stdout
        assert stdout is not None
        read: list[str] = []
        reading = threading.Thread(target=lambda: read.append(stdout.read()))
        reading.start()
        client = serve.client(timeout=20)
        for _ in range(4):
            client.embeddings.create(model="embed", input="a")
        serve.process.send_signal(signal.SIGTERM)
        reading.join(60)
        _, err = serve.process.communicate(timeout=60)
        assert serve.process.returncode == 0
    assert err.count("loaded") == 2
    assert read[0].count("x") == 4 * 200_000
