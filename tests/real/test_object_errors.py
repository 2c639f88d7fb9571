"""What a person reads when a store of objects refuses, is not there, or has no driver here."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from redline.cli import main
from redline.job import execution
from redline.sources import object as source_object
from support.object_server import ObjectServer, Surroundings, object_server, wire_to

pytestmark = pytest.mark.real

ROWS = "".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(3)).encode()
ASK = ("--model", "m", "--endpoint", "sim", "-q")


class Told(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str


Cli = Callable[..., Told]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with object_server() as server:
        server.s3.create_bucket(Bucket="data")
        server.put("data", "in/rows.jsonl", ROWS)
        yield server


@pytest.fixture(autouse=True)
def around(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Surroundings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source_object, "WAITS_S", (0.01,))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    return Surroundings(monkeypatch, server.url)


@pytest.fixture
def shared(around: Surroundings) -> None:
    """For tests that are not about credentials."""
    around.share_drivers()


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    def call(*argv: str) -> Told:
        with pytest.raises(SystemExit) as ended:
            main(list(argv))
        assert isinstance(ended.value.code, int)
        return Told(ended.value.code, *capfd.readouterr())

    return call


def error(what: str, hint: str) -> Told:
    return Told(2, "", f"error: {what}\n\nhint: {hint}\n")


RIGHTS = (
    "allow these credentials s3:ListBucket on the bucket and s3:GetObject on the object, and "
    "s3:PutObject and s3:DeleteObject if it is an output"
)
KEYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket, "
    "FSSPEC_S3_ANON=true"
)
BUCKET = "check the name of the bucket, and which store it is in: AWS_ENDPOINT_URL, AWS_PROFILE"


@pytest.mark.parametrize(
    ("url", "what", "hint"),
    [
        ("s3://dta/rows.jsonl", "cannot read {}: there is no bucket dta", BUCKET),
        ("s3://data/in/row.jsonl", "{} does not exist", "did you mean rows.jsonl?"),
        (
            "s3://data/row.jsonl",
            "{} does not exist",
            "check the name, which is case-sensitive",
        ),
        (
            "s3://data/nowhere/rows.jsonl",
            "{} does not exist",
            "check the name, which is case-sensitive",
        ),
        ("s3://data/in", "{} is a folder", "pass the URL of one object in it"),
        ("s3://data/", "{} is a folder", "pass the URL of one object in it"),
        ("s4://data/a", "{}: s4:// is not a URL scheme that fsspec knows", "did you mean s3?"),
    ],
)
@pytest.mark.usefixtures("shared")
def test_an_input_that_is_not_there(cli: Cli, url: str, what: str, hint: str) -> None:
    assert cli("run", url, *ASK) == error(what.format(url), hint)


@pytest.mark.parametrize(
    ("url", "what", "hint"),
    [
        ("s3://dta/labels.jsonl", "cannot write to {}: there is no bucket dta", BUCKET),
        ("s3://data", "the output {} does not name an object", "for example s3://data/labels.jsonl"),
        ("s3://data/", "the output {} does not name an object", "for example s3://data/labels.jsonl"),
        (
            "s3://data/a/../b",
            "the path of the output {} has a segment that is empty, `.` or `..`",
            "for example s3://bucket/folder/labels.jsonl",
        ),
        (
            "https://example.org/labels.jsonl",
            "results cannot be written to a web server: {}",
            "write to a file, or to a store such as s3://bucket/labels.jsonl",
        ),
        ("s3://data/in/rows.jsonl", "{} is the input, and would be written to", "choose another "
         "output"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("shared")
def test_an_output_that_cannot_be_one(cli: Cli, url: str, what: str, hint: str) -> None:
    told = cli("run", "s3://data/in/rows.jsonl", *ASK, "-o", url)
    assert told == error(what.format(url), hint)
    # Nothing was sent, and nothing is left behind.
    assert list(Path().iterdir()) == []


def test_no_credentials(cli: Cli, around: Surroundings) -> None:
    around.without_keys()
    url = "s3://data/in/rows.jsonl"
    found = cli("run", url, *ASK)
    assert found == error(f"cannot read {url}: unable to locate credentials", KEYS)


def test_credentials_that_are_refused_or_allow_too_little(
    server: ObjectServer, cli: Cli, around: Surroundings
) -> None:
    iam = server.client("iam")
    iam.create_user(UserName="reader")
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": "*"}
        ],
    }
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    url, out = "s3://data/in/rows.jsonl", "s3://data/labels.jsonl"
    with server.checking_keys():
        told = cli("run", url, *ASK)
        unknown = f"cannot read {url}: the credentials are refused (InvalidAccessKeyId)"
        assert told == error(unknown, KEYS)
        around.with_keys(key["AccessKeyId"], "wrong")
        wrong = f"cannot read {url}: the credentials are refused (SignatureDoesNotMatch)"
        assert cli("run", url, *ASK) == error(wrong, KEYS)
        around.with_keys(key["AccessKeyId"], key["SecretAccessKey"])
        assert cli("run", url, *ASK) == error(
            f"cannot read {url}: no permission (AccessDenied)", RIGHTS
        )
    iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=json.dumps(policy))
    with server.checking_keys():
        assert cli("run", url, *ASK).status == 0
        # Told before anything is asked, and so before anything is billed.
        told = cli("run", url, *ASK, "-o", out)
        assert told == error(f"cannot write to {out}: no permission (AccessDenied)", RIGHTS)


def test_a_store_that_cannot_be_reached(cli: Cli, around: Surroundings) -> None:
    around.point_to("http://127.0.0.1:9")
    hint = "check the network, and AWS_ENDPOINT_URL if it is set, then try again"
    for argv, doing in (
        (("run", "s3://data/in/rows.jsonl", *ASK), "read s3://data/in/rows.jsonl"),
        (("verify", "s3://data/labels.jsonl"), "read s3://data/labels.jsonl"),
    ):
        told = cli(*argv)
        assert told.status == 2
        assert told.err.startswith(f"error: cannot {doing}: could not connect to the endpoint URL")
        assert "http://127.0.0.1:9/" in told.err
        assert told.err.endswith(f"hint: {hint}\n")


def test_a_network_that_goes_down_in_the_middle(
    server: ObjectServer, cli: Cli, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers that came are safe here, which the summary says, and how to go on."""
    Path("rows.jsonl").write_bytes(ROWS)
    flags = ("rows.jsonl", *ASK, "-o", "s3://data/down.jsonl")
    with wire_to(server.port) as wire:
        around.point_to(wire.url)

        execute_local = execution.execute_local

        async def execute_and_lose(*given: Any, **more: Any) -> Any:
            report = await execute_local(*given, **more)
            wire.is_down = True
            return report

        with monkeypatch.context() as patch:
            patch.setattr(execution, "execute_local", execute_and_lose)
            told = cli("run", *flags)
        around.point_to(server.url)
    assert told.status == 2
    assert "3 rows = 3 succeeded + 0 failed + 0 unfinished" in told.err
    assert "results: s3.redline/data/down.jsonl, on this machine only\n" in told.err
    assert "not uploaded: s3://data/down.jsonl\n" in told.err
    assert re.search(
        r"^continue with: redline run rows.jsonl .* -o s3://data/down.jsonl$", told.err, re.M
    )
    assert "error: cannot upload to s3://data/down.jsonl: " in told.err
    assert "saved: 3 of 3 results in s3.redline/data/down.jsonl\n" in told.err
    assert "every result is in s3.redline/data/down.jsonl: run the same command again" in told.err
    told = cli("run", *flags)
    assert told.status == 0
    assert told.err == (
        "Nothing to do: 3 done\n"
        "results: s3://data/down.jsonl, uploaded; also in s3.redline/data/down.jsonl\n"
    )


@pytest.mark.usefixtures("shared")
def test_the_summary_for_programs(cli: Cli) -> None:
    told = cli("run", "s3://data/in/rows.jsonl", *ASK, "--log", "json", "-o", "s3://data/j.jsonl")
    summary = json.loads(told.err.splitlines()[-1])
    assert summary["output"] == "s3://data/j.jsonl"
    assert summary["kept_in"] == "s3.redline/data/j.jsonl"
    assert summary["not_uploaded"] is None


@pytest.mark.usefixtures("shared")
def test_verify_and_repair(server: ObjectServer, cli: Cli) -> None:
    out = "s3://data/proof.jsonl"
    assert cli("run", "s3://data/in/rows.jsonl", *ASK, "-o", out).status == 0
    assert cli("verify", out) == Told(0, "verify: 3 of 3, each once\n", "")
    # It is the object that is proven, and not the copy here.
    data = server.get("data", "proof.jsonl")
    server.put("data", "proof.jsonl", data[: data.index(b"\n") + 1])
    assert (
        cli("verify", out) == Told(1, "verify: 1 of 3; 2 missing, the first is row 2\n", "")
        or "2 missing" in cli("verify", out).out
    )
    missing = "s3://data/none.jsonl"
    hint = "pass the URL that the run was given with -o; a run uploads at its end"
    assert cli("verify", missing) == error(f"{missing} does not exist", hint)
    server.put("data", "other.jsonl", b"{}\n")
    assert cli("verify", "s3://data/other.jsonl") == error(
        "s3://data/other.jsonl is not a results file of redline",
        "redline wrote none of its lines, and there is no s3://data/other.redline/manifest.json: "
        "pass the file that the run was given with -o",
    )
    told = cli("show", out)
    assert told.out.startswith("1 row = 1 succeeded + 0 failed; of 3 in the input\n")
    assert cli("show", out, "--row", "9") == error(f"{out} has no row 9", "its input has 3 rows")
    assert cli("show", missing) == error(f"{missing} does not exist", hint)
    server.put("data", "copy.jsonl", data)
    told = cli("compare", out, "s3://data/copy.jsonl")
    assert told.out.startswith(f"A  {out}, model m\nB  s3://data/copy.jsonl\n\n1 row in common")
    assert "there is no s3://data/copy.redline/manifest.json" in " ".join(told.out.split())
    assert cli("compare", out, out) == error(
        f"{out} and {out} are the same file", "choose another file"
    )
    copy = "s3.redline/data/proof.jsonl"
    assert cli("repair", out) == error(
        f"{out} is in an object store, but redline repair works only on local files",
        f"run the original command again: it copies the object to {copy} and reports what is "
        f"wrong; then run redline repair {copy}, and the original command once more",
    )


@pytest.mark.usefixtures("shared")
def test_two_evaluations_are_compared(server: ObjectServer, cli: Cli) -> None:
    server.put("data", "in/asked.jsonl", b'{"question": "6 * 7?", "answer": "42"}\n')
    names = ["s3://data/one.jsonl", "s3://data/two.jsonl"]
    for name in names:
        asked = ("eval", "gsm8k", "--data", "s3://data/in/asked.jsonl", "--endpoint", "sim")
        assert cli(*asked, "-o", name).status == 0
    told = cli("eval", "compare", *names)
    assert told.out.startswith("".join(f"{name}  100.0%  1 of 1\n" for name in names))


@pytest.mark.usefixtures("shared")
def test_a_dry_run_knows_what_the_object_has(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("s3://data/in/rows.jsonl", *ASK, "-o", "s3://data/dry.jsonl")
    assert cli("run", *flags, "--limit", "2").status == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    told = cli("run", *flags, "--dry-run")
    assert told.out.startswith("3 rows = 2 done already + 1 to send + 0 that cannot be sent\n")
    assert list(Path().iterdir()) == []
    assert told.status == 0


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """These cannot be imported, as if they were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["s3://data/in/rows.jsonl", "gs://data/rows.jsonl"])
@pytest.mark.parametrize("missing", ["fsspec", "driver"])
def test_a_driver_that_is_not_installed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, url: str, missing: str
) -> None:
    if missing == "driver":
        # Which drivers are imported already is kept there.
        known = sys.modules["fsspec.registry"]._registry  # type: ignore[attr-defined]
        monkeypatch.delitem(known, "s3", raising=False)
        without(monkeypatch, "s3fs", "gcsfs")
    else:
        without(monkeypatch, "fsspec")
    package = "gcsfs" if url.startswith("gs") else "redline[s3]"
    told = cli("run", url, *ASK)
    assert told == error(
        f"reading {url} needs a driver, but {package} is not installed",
        f"pip install '{package}'",
    )


@pytest.mark.parametrize(
    ("scheme", "package", "hint"),
    [
        ("https", "fsspec[http]", "pip install 'fsspec[http]'"),
        ("http", "fsspec[http]", "pip install 'fsspec[http]'"),
        ("sftp", "its package", 'SFTPFileSystem requires "paramiko" to be installed'),
    ],
)
def test_if_fsspec_is_there_the_package_that_its_driver_needs_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, scheme: str, package: str, hint: str
) -> None:
    known = sys.modules["fsspec.registry"]._registry  # type: ignore[attr-defined]
    monkeypatch.delitem(known, scheme, raising=False)
    # As without aiohttp or paramiko, which these modules import.
    without(monkeypatch, f"fsspec.implementations.{scheme.removesuffix('s')}")
    url = f"{scheme}://host/rows.jsonl"
    told = cli("run", url, *ASK)
    assert told == error(f"reading {url} needs a driver, but {package} is not installed", hint)
