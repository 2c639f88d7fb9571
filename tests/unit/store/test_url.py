"""Names of objects: what is one, what is shown of it, and where its copy stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from redline.errors import ConfigError
from redline.job.settings import Job, Prompting
from redline.journal import Output
from redline.store import ObjectUrl, local_path, url_of


def url(text: str) -> ObjectUrl:
    found = url_of(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "place", ["rows.jsonl", "a:b", "/s3://b/x", "-", "", "c://x", Path("s3:/b")]
)
def test_what_is_no_url(place: object) -> None:
    assert url_of(place) is None


@pytest.mark.parametrize(
    "text", ["file:///tmp/a.jsonl", "local:///tmp/a.jsonl", "FILE:///tmp/a.jsonl"]
)
def test_a_file_url_is_a_path(text: str) -> None:
    assert url_of(text) is None
    assert local_path(text) == Path("/tmp/a.jsonl")
    assert Output.at(text).path == Path("/tmp/a.jsonl")


@pytest.mark.parametrize(
    ("text", "name", "bucket", "file"),
    [
        ("s3://b/d/rows.jsonl", "s3://b/d/rows.jsonl", "b", "/d/rows.jsonl"),
        ("S3://b/d?e#f.csv.gz", "s3://b/d?e#f.csv.gz", "b", "/d?e#f.csv.gz"),
        ("s3://b/a.csv?versionId=x.y", "s3://b/a.csv", "b", "/a.csv"),
        ("https://h:1/a.csv?sig=x/y.z#f", "https://h:1/a.csv?...", "h:1", "/a.csv"),
        ("ftp://me:word@h/a.csv", "ftp://...@h/a.csv", "h", "/a.csv"),
        ("az://b", "az://b", "b", "/"),
    ],
)
def test_its_parts_and_what_is_shown(text: str, name: str, bucket: str, file: str) -> None:
    found = url(text)
    assert (found.name, found.bucket, str(found.file)) == (name, bucket, file)
    assert found.text.lower() == text.lower()


def test_the_copy_of_an_output_stands_below_a_folder_of_its_own() -> None:
    output = Output.at("s3://me:word@b/d/labels.jsonl", raw=True)
    assert output.path == Path("s3.redline/b/d/labels.jsonl")
    assert output.failed_path == Path("s3.redline/b/d/labels.failed.jsonl")
    assert output.state_path == Path("s3.redline/b/d/labels.redline")
    assert (output.name, output.raw) == ("s3://...@b/d/labels.jsonl", True)
    assert output.failed_name == "s3://...@b/d/labels.failed.jsonl"
    assert Output.at("memory:///labels.jsonl").path == Path("memory.redline/_/labels.jsonl")
    paths = [Output.at(f"s3://{name}/c").path for name in ("a-b", "a/b", "a.b")]
    assert len(set(paths)) == 3


@pytest.mark.parametrize(
    "text",
    ["s3://b", "s3://b/", "s3://b//c", "s3://b/./c", "s3://b/../../c", "s3://b/c?versionId=1",
     "http://h/a.jsonl"],
)  # fmt: skip
def test_a_url_that_no_results_can_have(text: str) -> None:
    with pytest.raises(ConfigError):
        Output.at(text)


async def _call(row: object) -> object:
    return row


@pytest.mark.parametrize(
    ("rows", "output"),
    [
        ("s3://b/labels.jsonl", "s3://b/labels.jsonl"),
        ("s3://b/labels.failed.jsonl", "s3://b/labels.jsonl"),
        ("s3.redline/b/labels.jsonl", "s3://b/labels.jsonl"),
        ("file://labels.jsonl", "labels.jsonl"),
    ],
)
def test_the_input_is_not_written_over(rows: str, output: str) -> None:
    with pytest.raises(ConfigError, match="is the input, and would be written to"):
        Job(rows=rows, call=_call, output=Output.at(output), prompting=Prompting())
    Job(rows=rows.replace("labels", "rows"), call=_call, output=Output.at(output))


PROBE = """
import sys
from redline.cli.app import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert ended.code == 0, ended.code
found = {name.partition(".")[0] for name in sys.modules} & {"fsspec", "s3fs", "botocore"}
assert not found, found
"""


def test_a_run_on_files_imports_nothing_of_stores(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    command = [sys.executable, "-c", PROBE, "run", "rows.jsonl", "--model", "m"]
    done = subprocess.run(
        [*command, "--endpoint", "sim", "-o", "labels.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
