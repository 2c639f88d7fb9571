"""The options of `redline.run`, and the job they make."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

import redline
from redline import EngineSettings, LocalEngine, Pool
from redline.calls import Endpoint, Timeouts
from redline.errors import ConfigError
from redline.job.settings import FLAGS, EmbeddedSim, Job, make_job
from redline.limits import Limits, Rate

ROWS = [{"prompt": "a"}]


def job(environ: dict[str, str] | None = None, rows: object = ROWS, **options: Any) -> Any:
    return make_job(rows, options, environ or {})  # type: ignore[arg-type]


def endpoint(**fields: Any) -> Endpoint:
    return Endpoint(base_url="http://a.example/v1", **fields)


async def answer(row: Any) -> Any:
    return row


def test_the_default_endpoint_and_key() -> None:
    endpoint = job().endpoint
    assert (endpoint.base_url, endpoint.api_key) == ("https://api.openai.com/v1", None)
    environ = {"OPENAI_BASE_URL": "http://a.example/v1", "OPENAI_API_KEY": "k"}
    endpoint = job(environ).endpoint
    assert (endpoint.base_url, endpoint.api_key) == ("http://a.example/v1", "k")
    endpoint = job(environ, endpoint="http://b.example/v1", api_key="own").endpoint
    assert (endpoint.base_url, endpoint.api_key) == ("http://b.example/v1", "own")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("promt", "did you mean prompt?"),
        ("temperature", 'set it as a field of the body: params={"temperature": ...}'),
        ("headroom", "it belongs to limits, which takes a redline.Limits"),
    ],
)
def test_an_unknown_option_has_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option: {name}") as caught:
        job(**{name: "x"})
    assert caught.value.hint == hint


@pytest.mark.parametrize("function", [redline.run, redline.arun, redline.stream])
def test_the_help_names_only_types_that_a_user_can_import(function: Any) -> None:
    types = " ".join(re.findall(r"^ +\w+ \((.*?)\): ", function.__doc__, flags=re.MULTILINE))
    names = set(re.findall(r"\b[A-Z]\w+", types))
    usual = {"Any", "Awaitable", "Callable", "Executor", "Mapping", "PathLike", "Sequence"}
    assert names - usual == {"Cache", "Endpoint", "Limits", "LocalEngine"}
    assert names - usual <= {*redline.__all__}


def test_none_means_not_given() -> None:
    made = job(prompt=None, rpm=None, output=None, timeout_s=None)
    assert (made.prompting.prompt, made.output, made.timeout_s) == (None, None, 600.0)
    assert made.limits == Limits()


def test_limits_and_their_short_forms_hold_together() -> None:
    made = job(limits=Limits(requests="2/1s", headroom=0.5), rps=4, rpm=90, tpm="200k")
    assert made.limits.requests == (Rate(2, 1.0), Rate(4, 1.0), Rate(90, 60.0))
    assert made.limits.tokens == (Rate(200_000, 60.0),)
    assert made.limits.headroom == 0.5
    assert made.endpoint.limits == made.limits
    assert job(rps=0.25).limits.requests == (Rate(1, 4.0),)


@pytest.mark.parametrize("value", [2.5, "2.5", 0.001, 1e3, 33.3, 1500.25, "1.5k", "0.0005m", 7])
@pytest.mark.parametrize(("name", "window_s"), [("rps", 1.0), ("rpm", 60.0), ("tpm", 60.0)])
def test_a_fraction_of_a_rate_is_kept_and_means_what_its_flag_means(
    name: str, window_s: float, value: float | str
) -> None:
    kind = "tokens" if name == "tpm" else "requests"
    (rate,) = getattr(job(**{name: value}).limits, kind)
    flag = f"{value:g}" if isinstance(value, float) else str(value)
    assert FLAGS[name].read(flag, name) == rate
    factor = {"k": 1e3, "m": 1e6}.get(flag[-1], 1)
    stated = float(flag.rstrip("km")) * factor
    assert rate.count / rate.window_s == pytest.approx(stated / window_s, rel=1e-12)
    # No burst of a server that allows one is larger than what was stated.
    assert rate.count < stated + 1


def test_a_number_that_cannot_be_kept_is_refused_and_not_rounded() -> None:
    with pytest.raises(ConfigError, match=r"whole requests or tokens, not 2\.5"):
        Rate(2.5, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="concurrency must be int or str or None, not float"):
        Limits(concurrency=2.5)  # type: ignore[arg-type]


def test_reasons_to_fail_are_one_text_or_several() -> None:
    assert job(fail_on="length").fail_on == ("length",)
    assert job(fail_on="empty, length,").fail_on == ("empty", "length")
    assert job(fail_on=["empty", "length"]).fail_on == ("empty", "length")


@pytest.mark.parametrize("value", [0, -1, "0", "abc", None.__class__, float("nan")])
def test_a_rate_that_is_none(value: Any) -> None:
    with pytest.raises(ConfigError, match="rpm"):
        job(rpm=value)


def test_an_endpoint_brings_its_own_limits_and_key() -> None:
    endpoint = Endpoint(base_url="http://a.example/v1")
    assert job(endpoint=endpoint).endpoint is endpoint
    for name, value in {"rpm": 1, "api_key": "k", "timeout_s": 3.0, "headers": {}}.items():
        with pytest.raises(
            ConfigError, match=f"{name} and an Endpoint cannot be combined"
        ) as caught:
            job(endpoint=endpoint, **{name: value})
        # Its own fields have other names than some options.
        assert "limits=Limits(...)" in caught.value.hint
        assert f"{name}=..." not in caught.value.hint


def test_a_job_of_one_endpoint_has_its_limits() -> None:
    one = Endpoint(base_url="http://a.example/v1", limits=Limits(requests="7/1s"))
    made = Job(rows=ROWS, endpoints=(one,))
    assert made.endpoint is one
    assert made.call_limits == (one.limits,)
    with pytest.raises(ConfigError, match="an endpoint and a function to call cannot be combined"):
        Job(rows=ROWS, endpoints=(one,), call=answer)


def test_several_endpoints_have_their_own_limits_and_one_bound_together() -> None:
    a, b = "http://a.example/v1", "http://b.example/v1"
    made = job(endpoint=[a, b], rps=7)
    assert [one.base_url for one in made.endpoints] == [a, b]
    assert [one.limits.requests for one in made.endpoints] == [(Rate(7, 1.0),)] * 2
    assert (made.endpoint, made.balance, made.most_together) == (None, "p2c", None)
    assert made.slots == 2 * made.endpoints[0].limits.slots()
    # Each could have all of them, if the others take none.
    made = job(endpoint=[a, b], concurrency=50)
    assert (made.slots, made.most_together) == (50, 50)
    assert [one.limits.slots() for one in made.endpoints] == [50, 50]
    fast = Endpoint(base_url=a, limits=Limits(concurrency=8), timeouts=Timeouts(attempt_s=30))
    slow = Endpoint(base_url=b, limits=Limits(concurrency=3))
    made = job(endpoint=[fast, slow], concurrency=100)
    assert (made.slots, made.most_together, made.attempt_s) == (11, 100, 600)
    assert job(endpoint=[fast]).endpoint is fast


@pytest.mark.parametrize(
    ("limits", "together", "own"),
    [
        (Limits(concurrency=8), 2, 2),
        (Limits(), 2, 2),
        (Limits(concurrency=8), 9, 8),
        (Limits(concurrency="auto"), 2, Limits(concurrency="auto").slots()),
    ],
)
def test_a_list_of_one_endpoint_is_bounded_like_any_list(
    limits: Limits, together: int, own: int
) -> None:
    one = Endpoint(base_url="http://a.example/v1", limits=limits)
    made = job(endpoint=[one], concurrency=together)
    assert made.slots == min(own, together)
    assert made.endpoint.limits.slots() == own


@pytest.mark.parametrize(
    ("endpoints", "options", "what"),
    [
        (["http://a.example/v1", "sim"], {}, "sim cannot be one of several endpoints"),
        (
            ["http://a.example/v1", LocalEngine(EngineSettings(model="tiny"))],
            {},
            "engine:tiny cannot be one of several endpoints",
        ),
        (Pool(["http://a.example/v1"]), {}, "pass a list of them, not a Pool"),
        ([], {}, "endpoint is an empty list"),
        ([3], {}, "endpoint must be a list of URLs and Endpoints, not of int"),
        (["http://a.example/v1", "http://a.example/v1"], {}, "are the same server with the same"),
        (["http://a.example/v1", "http://a.example/v2"], {}, "two endpoints are named a.example"),
        (
            [endpoint(name="a"), endpoint(name="b")],
            {},
            "the endpoints a and b are the same server with the same key",
        ),
        (
            [endpoint(name="a", models={"fast": "x"}), endpoint(name="b", api_key="k")],
            {},
            "endpoint a has a name for the model fast, but b does not",
        ),
        (
            [endpoint(name=name, api_key=name, models={"fast": name}) for name in "ab"],
            {"model": "slow"},
            "no endpoint has a model slow",
        ),
        ([endpoint(name=name, api_key=name) for name in "ab"], {"rpm": 9}, "rpm and an Endpoint"),
        ("http://a.example/v1", {"balance": "p3c"}, "unknown way to balance: p3c"),
        (
            ["http://a.example/v1", "http://b.example/v1"],
            {"via": "batch", "output": "out.jsonl"},
            "batches and several endpoints cannot be combined",
        ),
    ],
)
def test_endpoints_that_make_no_job(endpoints: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)):
        job(endpoint=endpoints, **options)


@pytest.mark.parametrize("name", ["metrics", "probe"])
@pytest.mark.parametrize(
    "stated", ["", "x", "x/y", "//host/x", "ftp://host/x", "http://", "http://u:p@h/x", "/a#b"]
)
def test_a_page_of_a_server_is_a_path_or_a_url(name: str, stated: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be true, false, a path or a URL, not"):
        endpoint(**{name: stated})


@pytest.mark.parametrize("stated", [True, False, "/x", "/x?a=b", "http://127.0.0.1:9000/x"])
def test_pages_of_a_server(stated: bool | str) -> None:
    made = endpoint(metrics=stated, probe=stated)
    assert (made.metrics, made.probe) == (stated, stated)


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_a_weight_is_above_0(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight must be a number above 0"):
        endpoint(weight=weight)


def test_two_keys_in_a_header_are_two_accounts() -> None:
    keys = [endpoint(name=key, headers={"api-key": key}) for key in "ab"]
    assert len(job(endpoint=keys).endpoints) == 2


def test_the_embedded_endpoint() -> None:
    made = job(endpoint="sim")
    assert isinstance(made.embedded, EmbeddedSim)
    assert made.endpoint.label == "sim"
    assert job(endpoint="http://a.example/v1").embedded is None


def test_a_function_takes_the_place_of_the_endpoint() -> None:
    made = job(call=answer, concurrency=3)
    assert made.call is answer
    assert made.endpoint is None
    assert made.limits.slots() == 3


def test_output_and_times(tmp_path: Path) -> None:
    path = tmp_path / "a.b.jsonl"
    made = job(output=path, ordered=True, raw=True, timeout_s=3.0, deadline_s=9.0, max_retries=2)
    assert made.output.path == path
    assert made.output.failed_path == tmp_path / "a.b.failed.jsonl"
    assert made.output.state_path == tmp_path / "a.b.redline"
    assert (made.output.ordered, made.output.raw, made.output.keep_input) == (True, True, False)
    assert made.endpoint.timeouts.attempt_s == 3.0
    assert (made.deadline_s, made.retry.max_retries) == (9.0, 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"limit": 0}, "limit must be at least 1 row, not 0"),
        ({"deadline_s": 0}, "deadline_s must be above 0 s, not 0"),
        ({"timeout_s": 0}, "timeout_s must be above 0 s, not 0"),
        ({"row_deadline_s": -1}, "row_deadline_s must be above 0 s, not -1"),
        ({"fail_on": ["lenght"]}, "unknown reason to fail on: lenght"),
        ({"output": "o", "format": "btch"}, "unknown format: btch"),
        ({"retry_failed": True}, "there are no failed rows to retry without an output file"),
        ({"restart": True, "force": True}, "--restart and --force cannot be combined"),
        ({"max_retries": 101}, "max_retries must be 0 to 100, not 101"),
        ({"endpoint": "localhost:8000"}, "not a base URL: localhost:8000"),
    ],
)
def test_a_value_that_cannot_work(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        job(**options)


def test_the_input_is_not_written_over(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("{}\n")
    (tmp_path / "link.jsonl").symlink_to(source)
    for output in (source, tmp_path / "link.jsonl", tmp_path / "x" / ".." / "rows.jsonl"):
        with pytest.raises(ConfigError, match="is the input, and would be written to"):
            job(rows=source, output=output)
    failed = tmp_path / "out.failed.jsonl"
    with pytest.raises(ConfigError, match="is the input") as caught:
        job(rows=str(failed), output=tmp_path / "out.jsonl")
    assert "--retry-failed" in caught.value.hint
    assert job(rows=source, output=tmp_path / "out.jsonl").output is not None


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_folder_is_no_output(name: str) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        make_job([], {"output": name}, {})


def test_a_pipe_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe is not a file"):
        make_job([], {"output": tmp_path / "pipe"}, {})


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("concurrency", "4", "unknown concurrency: 4"),
        ("concurrency", 2.5, "concurrency must be int or str, not float: 2.5"),
        ("timeout_s", "5", "timeout_s must be int or float, not str: '5'"),
        ("limit", True, "limit must be int, not bool: True"),
        ("strict", 1, "strict must be bool, not int: 1"),
        ("prompt", 5, "prompt must be str, not int: 5"),
        ("call", 5, "call must be Callable, not int: 5"),
        ("after", "len", "after must be Callable, not str: 'len'"),
        ("after", asyncio.sleep, "after must not be a coroutine function: it runs in a thread"),
        ("executor", 4, "executor must be Executor, not int: 4"),
        ("limits", {"share": "redis://:pw@h"}, "limits must be Limits, not dict"),
        ("api_key", ("sk-1",), "api_key must be str, not tuple"),
        ("headers", [("Authorization", "sk-1")], "headers must be Mapping, not list"),
        ("proxy", b"http://u:pw@h", "proxy must be str, not bytes"),
        ("alerts", "https://h/secret", "alerts must be Mapping, not str"),
        ("otel", "http://u:pw@h", "otel must be Mapping, not str"),
        (
            "endpoint",
            {"base_url": "http://h/v1", "api_key": "sk-1"},
            "endpoint must be a URL, an Endpoint, a LocalEngine, or a list of URLs and Endpoints, "
            "not dict",
        ),
        (
            "endpoint",
            [{"base_url": "http://h/v1", "api_key": "sk-1"}],
            "endpoint must be a list of URLs and Endpoints, not of dict",
        ),
        ("rpm", float("inf"), "rpm must be a finite number, not inf"),
        ("timeout_s", 10**400, f"timeout_s must be a finite number, not 1{'0' * 59}"),
        ("alerts", {1: 2}, "unknown setting: 1"),
        ("prices", {"m": {1: 2}}, "unknown setting: 1"),
        ("output_path", 3, "output_path must be str, not int: 3"),
        (
            "fail_on",
            {1: (2,)},
            "fail_on must be a string or a list of strings, not {1: (2,)}",
        ),
        (
            "fail_on",
            ["empty", 3],
            "fail_on must be a string or a list of strings, not ['empty', 3]",
        ),
        ("headers", {1: (2,)}, "names and values of headers must be text, not int and tuple"),
        ("headers", {"a": 2}, "names and values of headers must be text, not str and int"),
        ("headers", {"a b": "c"}, "not a header: 'a b'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(name: str, value: object, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_job([], {name: value}, {})  # type: ignore[misc]
    assert caught.value.what == what


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("headers", {"X-Team": "a"}, "leave one out"),
        *(
            (name, "{{ text }}", "the function gets the row")
            for name in ("prompt", "system", "body", "url", "method", "output_path")
        ),
        ("params", {"temperature": 0}, "the function gets the row"),
        ("constant_prompt", True, "the function gets the row"),
        ("prices", {"m": {"input": 1, "output": 1}}, "a function reports no usage"),
        ("fail_on", "empty", "an output has no finish reason"),
    ],
)
def test_what_a_function_cannot_use_is_refused(name: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=f"call and {name} cannot be combined: {why}"):
        job(call=answer, **{name: value})
