"""The inventory of the public surface: it finds each kind of thing, and a difference in each."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.scripts import script

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]
ERRORS = "class RedlineError(Exception): ...\nclass Unwell(RedlineError): ...\n"
READER = (
    'import os\nNAME = "OUR_NAME"\n\ndef read(e=os.environ):\n    return os.environ.get(NAME)\n'
)
PROJECT = """[project]
requires-python = ">=3.11"
scripts = { redline = "redline.cli:main" }
optional-dependencies = { s3 = [] }
"""


@pytest.fixture(scope="module")
def inventory() -> ModuleType:
    return script("bench/inventory.py", "record", "versions")


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A checkout whose modules nobody imports."""
    source = tmp_path / "one" / "src"
    (source / "redline" / "deep").mkdir(parents=True)
    (source / "redline" / "errors.py").write_text(ERRORS)
    (source / "redline" / "deep" / "reader.py").write_text(READER)
    (tmp_path / "one" / "pyproject.toml").write_text(PROJECT)
    return source


def test_a_checkout_does_not_differ_from_itself(
    inventory: ModuleType,
    planted: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(inventory.record, "ROOT", planted.parent)
    monkeypatch.setattr(sys, "argv", ["inventory.py", ".", ".", "--parts", "source"])
    assert inventory.main() == 0
    assert capsys.readouterr().out == "6 lines, no difference\n"


@pytest.mark.slow
def test_commands_settings_and_python_are_listed(inventory: ModuleType, tmp_path: Path) -> None:
    lines = inventory.surface(ROOT / "src", tmp_path)
    for beginning in (
        "command verify",
        "flag redline run -o --output: name='output', type='text', default=None, metavar='FILE'",
        "help redline engine: Usage: redline engine MODEL [FLAGS]",
        "redline.toml [run] rpm: error: rpm must be text or a number",
        "redline.toml [endpoints.e] base_url: error: base_url must be",
        'redline.toml [prices."m"] input: error:',
        "task file metric: error:",
        "python redline.run(rows: 'object', *, prompt=None",
        "python redline.Client.call(self, request:",
        "python redline.errors.RateLimited.retry_after_s: set on instances",
        "python redline.Report.unfinished: property(self) -> 'int'",
        "python redline.errors.ConfigError: is redline.ConfigError",
        "python redline.testing.virtual_run(",
        "python redline.route.scale.Launcher.start(self, name: 'str') -> 'Seat'",
    ):
        assert any(line.startswith(beginning) for line in lines), beginning
    assert not [line for line in lines if " at 0x" in line or "redline.calls." in line]


def test_a_job_shows_the_fields_of_its_lines_and_files(
    inventory: ModuleType, tmp_path: Path
) -> None:
    with inventory.serving(ROOT / "src", tmp_path, ["sim"]) as url:
        lines = set(inventory.job_lines(ROOT / "src", tmp_path, "json", url))
        paths = {"/sim/stats", "/v1/chat/completions", "/nowhere"}
        lines |= set(inventory.endpoint_lines("sim", url, paths))
    assert lines > {
        "job json 1: status 1",
        "job json 1 stderr summary spent_usd: null",
        "job json 1 stderr summary first_failure.kind: text",
        "job json 2 stdout| verify: N of N, each once; N of them as failures",
        "file json out.jsonl: custom_id: null or text",
        "file json out.jsonl: usage.total_tokens: number",
        "file json out.failed.jsonl: error.kind: text",
        "file json out.redline/manifest.json: settings.prompt: text",
        "http sim GET /sim/stats: 200 application/json answered: number",
        "http sim GET /v1/chat/completions: 405 application/json",
        "http sim POST /v1/chat/completions: 200 application/json choices[].message.content: text",
    }
    assert not [line for line in lines if "/nowhere" in line]


def test_a_moved_module_is_no_difference_and_another_name_is(
    inventory: ModuleType, planted: Path, tmp_path: Path
) -> None:
    old = sorted(set(inventory.source_lines(planted)))
    assert old == [
        "environment variable OUR_NAME",
        "error kind redline_error: RedlineError(Exception)",
        "error kind unwell: Unwell(RedlineError)",
        "package extra s3",
        "package requires python >=3.11",
        "package script redline = redline.cli:main",
    ]
    shutil.copytree(planted.parent, tmp_path / "two")
    new = tmp_path / "two" / "src"
    (new / "redline" / "deep").rename(new / "redline" / "shallow")
    assert inventory.differences(old, sorted(set(inventory.source_lines(new)))) == []
    shutil.copytree(planted.parent, tmp_path / "three")
    other = tmp_path / "three" / "src"
    reader = other / "redline" / "deep" / "reader.py"
    reader.write_text(READER.replace("OUR_NAME", "YOUR_NAME"))
    assert inventory.differences(old, sorted(set(inventory.source_lines(other))))[-2:] == [
        "-environment variable OUR_NAME",
        "+environment variable YOUR_NAME",
    ]
