"""The program as a process of its own: pipes, terminals, signals, and a shell's completion."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.summaries import sums

Cli = Callable[..., Any]
Rows = Callable[..., str]

REDLINE = [sys.executable, "-m", "redline"]
SIM = ["--endpoint", "sim", "--prompt", "{{ text }}"]
TIMEOUT_S = 60


def many(rows: Rows, count: int) -> str:
    return rows(*({"text": str(number)} for number in range(count)))


def shell(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs `command` in bash, where `redline` is the program under test."""
    text = f'redline() {{ "{sys.executable}" -m redline "$@"; }}\nset -o pipefail\n{command}'
    return subprocess.run(
        ["bash", "-c", text],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        "redline run in.jsonl --endpoint sim --prompt '{{ text }}' | head -1",
        "redline run in.jsonl --endpoint sim --prompt '{{ text }}' --dry-run | head -1",
        "redline run --help | head -1",
    ],
)
def test_a_reader_that_leaves_early_is_success(rows: Rows, command: str) -> None:
    many(rows, 3000)
    done = shell(command)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


CONTINUES = "; with -o FILE, the same command continues a run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "more_hint"),
    [
        ("run in.jsonl --endpoint sim --prompt '{{ text }}'", CONTINUES),
        ("run in.jsonl --endpoint sim --prompt '{{ text }}' --dry-run", ""),
        ("sim", ""),
        ("fleet up fleet.toml", ""),
    ],
)
def test_a_full_disk_behind_stdout_is_an_error(rows: Rows, command: str, more_hint: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full on this system")
    many(rows, 300)
    Path("fleet.toml").write_text(
        'model = "m"\n[replica]\ncommand = "python3 -m http.server {port}"\n'
    )
    done = shell(f"redline {command} > /dev/full")
    assert done.returncode == 2
    assert done.stderr == (
        "error: cannot write to stdout: No space left on device\n\n"
        f"hint: redirect stdout elsewhere{more_hint}\n"
    )


def test_a_stdout_that_cannot_be_written_is_not_called_full() -> None:
    done = shell("redline --version </dev/null >&0")
    assert (done.returncode, done.stderr) == (
        2,
        "error: cannot write to stdout: Bad file descriptor\n\nhint: redirect stdout elsewhere\n",
    )


def test_a_closed_stdout_is_told_before_anything_is_sent(rows: Rows) -> None:
    many(rows, 3)
    done = shell("redline run in.jsonl --endpoint sim --prompt '{{ text }}' >&-")
    assert (done.returncode, done.stderr) == (
        2,
        "error: stdout is closed, so results would be lost\n\nhint: add -o FILE\n",
    )
    done = shell("redline run in.jsonl --endpoint sim --prompt '{{ text }}' -o out.jsonl >&-")
    assert (done.returncode, "error" in done.stderr) == (0, False)


def test_an_error_is_shown_in_full_if_stdout_is_closed(cli: Cli, rows: Rows) -> None:
    many(rows, 3)
    assert cli("run", "in.jsonl", *SIM, "-o", "out.jsonl").status == 0
    Path("out.redline/manifest.json").write_text("{")
    done = shell("redline run in.jsonl --endpoint sim --prompt '{{ text }}' -o out.jsonl >&-")
    assert done.returncode == 2
    assert done.stderr.startswith("error: out.redline/manifest.json is damaged: ")


def test_a_closed_stderr_does_not_end_the_run(rows: Rows) -> None:
    many(rows, 3)
    done = shell("redline run in.jsonl --endpoint sim --prompt '{{ text }}' -o out.jsonl 2>&-")
    assert done.returncode == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("command", ["sim", "fleet up fleet.toml"])
def test_a_server_prints_only_its_url_if_stderr_is_closed(command: str) -> None:
    replica = f"{sys.executable} -m redline sim --port {{port}}"
    Path("fleet.toml").write_text(
        f'model = "sim"\n[front]\nport = 0\n[replica]\ncommand = "{replica}"\n'
    )
    with subprocess.Popen(
        ["bash", "-c", f'exec "{sys.executable}" -m redline {command} 2>&-'],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    assert url.startswith("http://127.0.0.1:")
    assert (process.returncode, rest) == (0, "")


def test_nobody_to_read_stderr_does_not_end_the_run(rows: Rows) -> None:
    many(rows, 300)
    done = shell(
        "redline run in.jsonl --endpoint sim --prompt '{{ text }}' -o out.jsonl 2> >(true)"
    )
    assert done.returncode == 0
    assert len(Path("out.jsonl").read_text().splitlines()) == 300


def test_a_pipeline_of_two_runs(rows: Rows) -> None:
    rows({"text": "a"})
    done = shell(
        "cat in.jsonl | redline run - --endpoint sim --prompt '{{ text }}' -q"
        " | redline run - --endpoint sim --prompt '{{ output }}!' -q"
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["output"] == "You said: You said: a!"
    assert [whole for whole, _ in sums(done.stderr)] == [1, 1]


def test_an_interrupt_drains_and_names_the_command_that_continues(cli: Cli, rows: Rows) -> None:
    name = many(rows, 400)
    command = ["run", name, *SIM, "-o", "out.jsonl", "--rps", "100", "-c", "4"]
    process = subprocess.Popen(
        [*REDLINE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    output = Path("out.jsonl")
    ends_s = time.monotonic() + TIMEOUT_S
    while not (output.exists() and output.read_bytes().count(b"\n") > 5):
        assert time.monotonic() < ends_s
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (130, "")
    assert [whole == parts for whole, parts in sums(err)] == [True]
    assert "; the input was not read to its end\n" in err
    assert err.splitlines()[-1] == (
        "continue with: redline run in.jsonl --endpoint sim --prompt '{{ text }}' -o out.jsonl "
        "--rps 100 -c 4"
    )
    assert cli("run", name, *SIM, "-o", "out.jsonl").status == 0
    assert cli("verify", "out.jsonl").out == "verify: 400 of 400, each once\n"


def on_a_terminal(command: list[str], columns: int, **environ: str) -> tuple[int, str]:
    """The exit status and everything that a terminal of that width is shown on stderr."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        command,
        env=os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color"} | environ,
        stdout=subprocess.DEVNULL,
        stderr=inner,
    )
    os.close(inner)
    shown = b""
    ends_s = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < ends_s:
            if not select.select([outer], [], [], 0.2)[0]:
                continue
            try:
                block = os.read(outer, 65536)
            except OSError:  # Linux says EIO where the other end is closed.
                break
            if not block:
                break
            shown += block
        status = process.wait(timeout=TIMEOUT_S)
    finally:
        os.close(outer)
        if process.poll() is None:
            process.kill()
    return status, shown.decode()


def visible(text: str) -> list[str]:
    """The lines without the terminal's commands."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))


@pytest.mark.parametrize("columns", [100, 40])
def test_a_terminal_is_shown_a_bar_and_counts(rows: Rows, columns: int) -> None:
    name = many(rows, 120)
    command = [*REDLINE, "run", name, *SIM, "-o", "out.jsonl", "--rps", "80"]
    status, shown = on_a_terminal(command, columns, NO_COLOR="1")
    assert status == 0
    lines = visible(shown)
    summary = next(number for number, line in enumerate(lines) if line.startswith("120 rows ="))
    progress = lines[:summary]
    assert any("in.jsonl" in line and "%" in line for line in progress)
    assert any(re.search(r"\d of 120 done +0 failed", line) for line in progress)
    assert max(map(len, progress)) <= columns
    # NO_COLOR: the screen is moved about on, but nothing is coloured.
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|4[0-9]|9[0-7])[0-9;]*m", shown)


def test_a_terminal_that_cannot_redraw_gets_plain_text(rows: Rows) -> None:
    command = [*REDLINE, "run", many(rows, 20), *SIM, "-o", "out.jsonl"]
    status, shown = on_a_terminal(command, 100, TERM="dumb")
    assert status == 0
    assert "\x1b" not in shown
    assert visible(shown)[0].startswith("20 rows =")


def test_the_simulator_says_its_url_first(cli: Cli, rows: Rows) -> None:
    process = subprocess.Popen(
        [*REDLINE, "sim", "--requests", "1000/1s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
        done = cli("run", many(rows, 20), "--base-url", url, "--model", "m", *SIM[2:], "-q")
        assert (done.status, len(done.results)) == (0, 20)
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert err.startswith("simulating requests 1000/1s (fixed); latency 0 s; seed 0; Ctrl-C")


def test_bash_completes_commands_flags_values_and_files(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(words: str, call: Callable[[], str] = lambda: cli().out) -> list[str]:
        """What bash would offer for the last word; each comes with its kind."""
        monkeypatch.setenv("_REDLINE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        return [line.removeprefix("plain,") for line in call().split()]

    monkeypatch.setenv("SHELL", shutil.which("bash") or "/bin/bash")
    script = cli("--show-completion")
    assert script.status == 0
    monkeypatch.setenv("SHELL", "/bin/abacus")
    unknown = cli("--show-completion")
    assert unknown.status == 2
    assert "there is no completion for the shell abacus" in unknown.err
    assert "_REDLINE_COMPLETE=bash_complete" in script.out
    commands = [
        "run",
        "eval",
        "synth",
        "tag",
        "status",
        "show",
        "compare",
        "report",
        "verify",
        "repair",
        "bench",
        "engine",
        "serve",
        "fleet",
        "keys",
        "sim",
        "route",
    ]
    assert completed("redline ") == commands
    assert completed("redline ", lambda: shell("redline").stdout) == commands
    assert completed("redline run in.jsonl --prof") == ["--profile"]
    assert completed("redline run in.jsonl --profile f") == ["fixed"]
    assert completed("redline run in.jsonl --log ") == ["text", "json"]
    assert completed("redline run in") == ["file,in"]
    assert completed("redline run in.jsonl -o out") == ["file,out"]


# Of these a run of a few rows from one file, without limits that are shared and without settings
# in its folder, needs nothing.
UNUSED = {
    *("redline.limits.shared", "redline.job.batch", "redline.sources.stream", "redline.tasks"),
    *("redline.engine.api", "redline.serve.http", "redline.testing"),
    *("dotenv", "tomllib", "rich", "redis", "sqlite3", "aiohttp", "http.client", "torch"),
    *("pyarrow", "zstandard", "datasets", "fsspec", "tiktoken", "numpy"),
}
# What `--help` can do without, beyond that.
UNUSED_FOR_HELP = {"jinja2", "uvloop", "redline.sim", "redline.httpserver", "email", "tempfile"}
# One process for all of them.
HELP = """
from redline.cli import main

for arguments in (["--version"], ["--help"], ["run", "--help"]):
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code
"""


def modules_of(*arguments: str, program: Sequence[str] = ("-m", "redline")) -> set[str]:
    """What a command imports, as the interpreter tells it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *program, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_a_command_imports_what_it_uses(rows: Rows) -> None:
    name = many(rows, 1)
    for_run = modules_of("run", name, *SIM, "-o", "out.jsonl")
    assert {"redline.sim", "jinja2"} <= for_run
    assert not UNUSED & for_run
    for_help = modules_of(program=("-c", HELP))
    assert "redline.cli" in for_help
    assert not (UNUSED | UNUSED_FOR_HELP) & for_help


def test_a_command_imports_what_its_settings_ask_for(rows: Rows) -> None:
    name = many(rows, 1)
    Path("redline.toml").write_text("[run]\nrps = 50\n")
    Path(".env").write_text("OPENAI_API_KEY=k\n")
    found = modules_of("run", name, *SIM, "--share", "limits.ledger")
    assert {"tomllib", "dotenv", "redline.limits.shared"} <= found


@pytest.mark.parametrize(("program", "is_collected_before"), [("redline", False), ("other", True)])
def test_only_the_command_collects_no_garbage_before_it_runs_and_little_then(
    program: str, is_collected_before: bool
) -> None:
    code = """if True:
        import gc, sys
        before = gc.get_threshold()
        sys.argv = [sys.argv[1]]
        import redline.cli
        print(gc.isenabled(), gc.get_threshold() == before)
        try:
            redline.cli.main(["toml-schema", "--help"])
        except SystemExit:
            print(gc.isenabled(), gc.get_threshold() == before)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == f"{is_collected_before} True"
    assert lines[-1] == "True False"


def test_what_the_encoding_of_stdout_lacks_is_escaped(cli: Cli, rows: Rows) -> None:
    assert cli("run", rows({"text": "日本"}), *SIM, "-o", "out.jsonl").status == 0
    for environ in ({"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
        done = shell("redline show out.jsonl --row 1", **environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\\u65e5\\u672c" in done.stdout
    done = shell(
        "mv out.jsonl $'caf\\xe9.jsonl'; redline show $'caf\\xe9.jsonl'", PYTHONIOENCODING="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\\udce9.jsonl" in done.stdout


def test_a_name_that_is_not_utf_8_is_written_as_json(cli: Cli, rows: Rows) -> None:
    path = "rows\udce9.jsonl"
    Path(rows({"text": "a"})).rename(path)
    for name in ("a\udce9.jsonl", "b\udce9.jsonl"):
        done = cli("run", path, *SIM, "-o", name, "--log", "json")
        assert (done.status, type(json.loads(done.err.splitlines()[-1]))) == (0, dict)
    for command in (
        ("show", "a\udce9.jsonl"),
        ("status", "a\udce9.jsonl"),
        ("compare", "a\udce9.jsonl", "b\udce9.jsonl"),
        ("bench", "sim", "--rows", path, *SIM[2:], "--limit", "1"),
    ):
        done = cli(*command, "--json")
        assert (done.status, type(json.loads(done.out))) == (0, dict), command
    # Its bytes come to a process of its own, and leave it, as they do here.
    done_alone = shell("redline show $'a\\xe9.jsonl' --json")
    assert (done_alone.returncode, type(json.loads(done_alone.stdout))) == (0, dict)


@pytest.mark.parametrize("flag", ["model", "system"])
def test_a_setting_that_is_not_utf_8_is_refused_by_name(cli: Cli, rows: Rows, flag: str) -> None:
    done = cli("run", rows({"text": "a"}), *SIM, f"--{flag}", "a \udce9", "-o", "out.jsonl")
    assert done.status == 2
    assert f"error: {flag} is not UTF-8" in done.err
    done = cli("run", "in.jsonl", *SIM, f"--{flag}", "a \udce9", "--dry-run")
    assert (done.status, done.err) == (0, "")
    assert "a \ufffd" in done.out


def test_an_input_whose_name_is_not_utf_8_is_to_be_named_again(cli: Cli, rows: Rows) -> None:
    path = "rows\udce9.jsonl"
    Path(rows({"text": "a"})).rename(path)
    cli("run", path, *SIM, "-o", "out.jsonl")
    done = cli("verify", "out.jsonl")
    assert done.status == 2
    assert "out.jsonl was made from a file whose name is not UTF-8" in done.err
    assert "hint: pass the input with --input" in done.err
    assert cli("verify", "out.jsonl", "--input", path).status == 0
