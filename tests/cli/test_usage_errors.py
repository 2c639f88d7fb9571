"""What a mistyped command line is answered: error, where, hint, and status 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]

TIMES = "for example 30, 500ms, 5m or 6h"
RATES = "write a count and a window, like 2/1s, 500/60s or 200k/60s"
RUN_HELP = "see redline run --help"

# What follows `redline run in.jsonl --endpoint sim --prompt x`; the error; where; the hint.
MISTAKES = [
    (["--promt", "x"], "unknown flag: --promt", "", "did you mean --prompt?"),
    (["--modle", "x"], "unknown flag: --modle", "", "did you mean --model?"),
    (["--zzzzzzzz"], "unknown flag: --zzzzzzzz", "", RUN_HELP),
    (["--limit"], "--limit needs a value", "", RUN_HELP),
    (["--quiet=3"], "--quiet takes no value", "", RUN_HELP),
    (
        ["more.jsonl"],
        "one argument too many: more.jsonl",
        "",
        "quote text with spaces; pass several files through stdin, as in: "
        "cat a.jsonl b.jsonl | redline run -",
    ),
    (
        ["s3://me:sk-1@bucket/a.jsonl"],
        "one argument too many: s3://...@bucket/a.jsonl",
        "",
        "quote text with spaces; pass several files through stdin, as in: "
        "cat a.jsonl b.jsonl | redline run -",
    ),
    (["-c", "0"], "--concurrency must be 1 to 100,000, not 0", "", ""),
    (
        ["-c", "abc"],
        "--concurrency is not a whole number: abc",
        "",
        "for example 8 or 1000",
    ),
    (["-c", "1.5"], "--concurrency is not a whole number: 1.5", "", "for example 8 or 1000"),
    (["--rpm", "0"], "--rpm must be above 0, not 0", "", "leave it out for no limit"),
    (["--rps", "0.0"], "--rps must be above 0, not 0.0", "", "leave it out for no limit"),
    (["--rpm", "abc"], "--rpm is not a number above 0: abc", "", "for example 500, 200k or 1.5m"),
    (["--rps", "nan"], "--rps is not a number above 0: nan", "", "for example 500, 200k or 1.5m"),
    (["--tpm", "-3"], "--tpm is not a number above 0: -3", "", "for example 500, 200k or 1.5m"),
    (["--requests", "2"], "--requests is not a rate: 2", "", RATES),
    (["--tokens", "2/0s"],
     "--tokens must have a window longer than 0 s and at most 31 days: 2/0s",
     "", "for example 2/1s or 500/60s"),
    (["--requests", "5/32d"],
     "--requests must have a window longer than 0 s and at most 31 days: 5/32d",
     "", "for example 2/1s or 500/60s"),
    (["--rps", "0.0000001"],
     "--rps must have a window longer than 0 s and at most 31 days: 0.0000001",
     "", "for example 2/1s or 500/60s"),
    (["--guard", "20"], "--guard must be 0 s or more and at most 10 s, not 20",
     "", "for example 500ms"),
    (["--share", "x.limits", "--dry-run"], "there is no limit to share",
     "", "set one, for example with --requests 500/60s"),
    (["--share", ".", "--rpm", "9", "--dry-run"],
     "the shared limits cannot be saved in .: Is a directory",
     "", "choose a file in a folder that exists and is writable"),
    (["--timeout", "abc"], "--timeout is not a time: abc", "", TIMES),
    (["--timeout", "0"], "--timeout must be above 0 s and at most 24 h, not 0", "", TIMES),
    (["--connect-timeout", "2d"],
     "--connect-timeout must be above 0 s and at most 24 h, not 2d", "", TIMES),
    (["--first-byte-timeout", "0"],
     "--first-byte-timeout must be above 0 s and at most 24 h, not 0", "", TIMES),
    (["--row-deadline", "0s"],
     "--row-deadline must be above 0 s and at most 31 days, not 0s", "", TIMES),
    (["--deadline", "soon"], "--deadline is not a time: soon", "", TIMES),
    (["--limit", "0"], "--limit must be at least 1, not 0", "", ""),
    (["--max-retries", "-1"], "--max-retries must be 0 to 100, not -1", "", ""),
    (["--max-tokens", "0"], "--max-tokens must be at least 1, not 0", "", ""),
    (["--temperature", "hot"], "--temperature is not a number: hot", "", "for example 0 or 0.8"),
    (["--headroom", "2"], "--headroom must be above 0 and at most 1, not 2", "",
     "0.8 uses 80 % of each rate and leaves the rest for others"),
    (["--format", "btch"], "--format must be one of redline, batch, not btch", "",
     "did you mean batch?"),
    (["--profile", "fixd"],
     "--profile must be one of any, fixed, moving, counter, bucket, not fixd", "",
     "did you mean fixed?"),
    (["--log", "jsn"], "--log must be one of text, json, not jsn", "", "did you mean json?"),
    (["--fail-on", "empty,lenght"],
     "--fail-on must be one of length, empty, content_filter, refusal, not lenght", "",
     "did you mean length?"),
    (["--param", "seed"], "--param is not NAME=VALUE: seed", "", "for example seed=7"),
    (["--header", "X"], "--header is not NAME: VALUE", "",
     "for example --header 'X-Team: search'"),
    (["--param", "seed=1", "--param", "seed=2"], "--param sets seed twice", "", "leave one out"),
    (["--header", "X-A: 1", "--header", "x-a: 2"], "--header sets x-a twice", "",
     "leave one out"),
    (["--header", "X A: 1"], "not a header: 'X A'", "",
     "a name has only letters, digits and symbols such as -, and a value has no control "
     "characters"),
    (["--header", "Transfer-Encoding: chunked"], "the header Transfer-Encoding cannot be set", "",
     "redline frames requests itself: leave the header out"),
    (["--method", "GTE"], "unknown HTTP method: GTE", "", "did you mean GET?"),
    (["--url", "chat"], "not a path: chat", "",
     "a path begins with /, as in /v1/embeddings; the base URL selects the server"),
    (["--output-path", "a..b"], "invalid output path: a..b", "",
     "for example result.items.0.text"),
    (
        ["--proxy", "abc"],
        "the proxy is not the URL of an HTTP proxy",
        "--proxy",
        "for example http://host:port",
    ),
    (["-o", "a.jsonl", "--output", "b.jsonl"], "--output is given 2 times", "",
     "it takes one value: leave the others out"),
    (["--prompt", "y"], "--prompt is given 2 times", "",
     "it takes one value: leave the others out"),
    (["--ordered"], "--ordered needs an output file", "", "set it with -o labels.jsonl"),
    (["--restart"], "--restart needs an output file", "", "set it with -o labels.jsonl"),
    (["-o", "."], "the output . is a folder", "", "choose a file in it: labels.jsonl"),
    (["-o", "new/"], "the output new/ is a folder", "", "choose a file in it: new/labels.jsonl"),
    (["-o", "/dev/null"], "the output /dev/null is not a file", "",
     "leave out -o to get results on stdout"),
    (["-o", "no ne/o.jsonl"], "the folder no ne does not exist", "--output no ne/o.jsonl",
     "mkdir -p 'no ne', or choose another -o"),
    (["-o", "in.jsonl/o.jsonl"], "in.jsonl is a file, not a folder", "--output in.jsonl/o.jsonl",
     "choose another -o"),
    (["-o", "in.jsonl"], "in.jsonl is the input, and would be written to", "",
     "choose another output"),
    (["--base-url", "http://127.0.0.1:1/v1"], "--endpoint and --base-url cannot be combined", "",
     "leave one out"),
    (["--body", "{}"], "a body template and a prompt cannot be combined", "",
     "put the prompt into the body template"),
    (["--api-key-env", "NOPE"], "--api-key-env names NOPE, which is empty or not set", "",
     "export NOPE=..., or write it into a .env file"),
    # The key itself, which is not repeated.
    (["--api-key-env", "gsk_7f3aVq"],
     "--api-key-env takes the name of an environment variable, but no variable with this "
     "name is set", "",
     "export a variable that holds the key, and pass its name, such as OPENAI_API_KEY"),
    (["--system", "@none.txt"], "--system cannot read none.txt: No such file or directory", "",
     "@FILE reads the template from a file"),
    (["-o", "o.jsonl", "--restart", "--force"], "--restart and --force cannot be combined", "",
     "leave one out"),
]  # fmt: skip


def error_of(what: str, where: str = "", hint: str = "") -> str:
    text = f"error: {what}\n" + (f"where: {where}\n" if where else "")
    return text + (f"\nhint: {hint}\n" if hint else "")


@pytest.mark.parametrize(
    ("argv", "what", "where", "hint"), MISTAKES, ids=[" ".join(row[0]) for row in MISTAKES]
)
def test_a_mistake_is_named_with_its_flag(
    cli: Cli, rows: Rows, argv: list[str], what: str, where: str, hint: str
) -> None:
    told = cli("run", rows({"text": "a"}), "--endpoint", "sim", "--prompt", "x", *argv)
    assert told.err == error_of(what, where, hint)
    assert (told.status, told.out) == (2, "")
    assert sorted(path.name for path in Path().iterdir()) == [".stdin", "in.jsonl"]


# Whole command lines.
OTHERS = [
    (["run"], error_of("INPUT is missing", "redline run",
                       f"redline run INPUT [FLAGS]; {RUN_HELP}")),
    (["runn"], error_of("unknown command: runn", "", "did you mean run?")),
    (["zzz"], error_of("unknown command: zzz", "", "see redline --help")),
    (["--prompt"], error_of("unknown flag: --prompt", "", "see redline --help")),
    (["sim", "--prot", "1"], error_of("unknown flag: --prot", "", "did you mean --port?")),
    (["sim", "--port", "http"],
     error_of("--port is not a whole number: http", "", "for example 8 or 1000")),
    (["sim", "--port", "70000"], error_of("--port must be 0 to 65,535, not 70000")),
    (["sim", "--latency", "x"], error_of("latency is not a time: x", "--latency",
     "write seconds like 0.2, a range like 2-5, or lognormal:1.2,0.4")),
    (["sim", "--faults", "2"], error_of("a share of faults must be 0 to 1, not 2", "--faults",
     "write one share like 0.05, or shares by kind like 429=0.02 and stall=0.01")),
    (["sim", "--algorithm", "fixd"],
     error_of("--algorithm must be one of fixed, moving, counter, bucket, not fixd", "",
              "did you mean fixed?")),
    (["sim", "--replay", "x.jsonl"],
     error_of("the replay file cannot be read: No such file or directory", "x.jsonl")),
    (["verify"], error_of("OUT is missing", "redline verify",
     "redline verify OUT [FLAGS]; see redline verify --help")),
    (["verify", "x.jsonl"],
     error_of("x.jsonl does not exist", "", "pass the file that the run was given with -o")),
    (["verify", "."],
     error_of(". is a folder", "", "pass the file that the run was given with -o")),
    (["repair"], error_of("OUT is missing", "redline repair",
     "redline repair OUT [FLAGS]; see redline repair --help")),
    (["repair", "x.jsonl"],
     error_of("x.jsonl does not exist", "", "pass the file that the run was given with -o")),
    (["repair", "."],
     error_of(". is a folder", "", "pass the file that the run was given with -o")),
    (["compare", "a.jsonl"], error_of("B is missing", "redline compare",
     "redline compare A B [FLAGS]; see redline compare --help")),
    (["tag", "a.jsonl", "b.jsonl"], error_of("one argument too many: b.jsonl", "",
     "quote text with spaces; pass several files through stdin, as in: "
     "cat a.jsonl b.jsonl | redline tag -")),
    (["show", "a.jsonl", "b.jsonl"], error_of("one argument too many: b.jsonl", "",
     "redline show OUT [FLAGS]; see redline show --help")),
    (["show", "a.jsonl", "b.jsonl", "c.jsonl"], error_of("too many arguments: b.jsonl c.jsonl", "",
     "redline show OUT [FLAGS]; see redline show --help")),
    (["synth", "--prompt", "Write", "it"],
     error_of("one argument too many: it", "", "quote text with spaces")),
    (["sim", "8000"], error_of("one argument too many: 8000", "",
     "redline sim [FLAGS]; see redline sim --help")),
    (["status", "."],
     error_of(". is a folder", "", "pass the file that the run was given with -o")),
    (["report", "/"],
     error_of("/ is a folder", "", "pass the file that the run was given with -o")),
    (["run", "none.jsonl", "--endpoint", "simm"],
     error_of("none.jsonl does not exist", "", "no file in {here} has a similar name")),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "text"), OTHERS, ids=[" ".join(row[0]) for row in OTHERS])
def test_a_whole_command_line_that_cannot_work(cli: Cli, argv: list[str], text: str) -> None:
    told = cli(*argv)
    assert told.err == text.replace("{here}", str(Path.cwd()))
    assert (told.status, told.out) == (2, "")


def test_an_unknown_endpoint_is_named_with_the_nearest(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"})
    told = cli("run", name, "--prompt", "x", "--endpoint", "simm")
    assert told.err == error_of("unknown endpoint: simm", "", "did you mean sim?")
    told = cli("run", name, "--prompt", "x", "--endpoint", "localhost:8000")
    assert told.err.startswith("error: unknown endpoint: localhost:8000\n\nhint: use a URL such")


@pytest.mark.parametrize("method", ["GET", "head"])
def test_what_a_request_without_a_body_cannot_carry_is_refused(
    cli: Cli, rows: Rows, method: str
) -> None:
    name = rows({"text": "a"})
    common = ("run", name, "--endpoint", "sim", "--url", "/chat", "--method", method)
    told = cli(*common, "--prompt", "{{ text }}")
    assert told.err == error_of(
        f"a {method.upper()} request has no body, so prompt would not be sent",
        "",
        "leave it out; put columns in --url '/chat?q={{ text | urlencode }}'",
    )
    for flags, what in (("--param", "seed=1"), "params"), (("--model", "m"), "model"):
        assert f"so {what} would not be sent" in cli(*common, *flags).err


def test_a_system_message_needs_a_place(cli: Cli, rows: Rows) -> None:
    told = cli(
        "run", rows({"text": "a"}), "--endpoint", "sim", "--url", "/v1/embeddings",
        "--prompt", "{{ text }}", "--system", "be brief",
    )  # fmt: skip
    assert told.err == error_of(
        "a request to /v1/embeddings has no place for a system message",
        "",
        "put its text into --prompt, or write the whole body with --body",
    )


@pytest.mark.parametrize(
    ("flag", "name", "text", "why"),
    [
        ("--prompt", "prompt", "{{ text ",
         "unexpected end of template, expected 'end of print statement'."),
        ("--prompt", "prompt", "{{ text | upcase }}", "No filter named 'upcase'."),
        ("--body", "body", '{"q": {{ text }', "unexpected '}'"),
        ("--url", "url", "/chat?q={{ text ",
         "unexpected end of template, expected 'end of print statement'."),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_read(
    cli: Cli, rows: Rows, flag: str, name: str, text: str, why: str
) -> None:
    told = cli("run", rows({"text": "a"}), "--endpoint", "sim", flag, text)
    assert told.err == error_of(
        f"the {name} template is not valid: {why}", "", "columns are written as {{ column }}"
    )
    assert told.status == 2


@pytest.mark.parametrize("others", [(), ("--via", "batch")])
def test_a_missing_key_is_told_before_anything_is_sent(
    cli: Cli, rows: Rows, others: tuple[str, ...]
) -> None:
    told = cli("run", rows({"text": "a"}), "--prompt", "x", *others)
    assert told.err == error_of(
        "there is no API key for https://api.openai.com/v1",
        "",
        "set OPENAI_API_KEY or --api-key-env, choose another --endpoint, or try things "
        "out with --endpoint sim",
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ExceptionGroup("unhandled errors in a TaskGroup", [MemoryError()]),
    ],
)
def test_a_want_of_memory_or_threads_is_no_defect(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def short(*_: object) -> int:
        raise error

    monkeypatch.setattr("redline.cli.commands.run.Session", short)
    told = cli("run", rows({"text": "a"}))
    assert told.err == error_of(
        "the operating system refuses this process more memory or threads",
        "",
        "raise the limit: `ulimit -v`, `ulimit -u` or the container's; or, for a run, lower "
        "--concurrency; its results on disk are safe; with -o, the same command resumes it",
    )
    assert told.status == 2


def test_our_own_defect_is_told_as_one(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("redline.cli.commands.run.Session", broken)
    told = cli("run", rows({"text": "a"}))
    assert told.status == 3
    assert "ZeroDivisionError: planted" in told.err
    assert told.err.endswith(
        "\nerror: this is a defect in redline, not in your input\n\n"
        "hint: report it with the lines above; results that are on disk are safe\n"
    )
