"""redline.toml and .env, read into what flags would bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from redline.cli.session import ENDPOINT_KEYS, load
from redline.errors import ConfigError
from redline.job.settings import Kind

KINDS = {"rpm": Kind.TEXT, "param": Kind.LIST, "raw": Kind.FLAG, "max_retries": Kind.TEXT}


def test_without_files_only_the_environment_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "1")
    found = load(tmp_path, KINDS)
    assert (found.run, found.endpoints, found.environ["PLANTED"]) == ({}, {}, "1")


def test_values_come_as_a_flag_would_bring_them(tmp_path: Path) -> None:
    (tmp_path / "redline.toml").write_text(
        "[run]\nrpm = 500\nparam = 'seed=7'\nraw = true\nmax-retries = 2\n"
        "[endpoints.a]\nbase_url = 'http://a/v1'\ntokens = ['1k/1s', '2k/1m']\nheadroom = 0.8\n"
        "headers = { N = 1 }\n"
    )
    found = load(tmp_path, KINDS)
    assert found.run == {"rpm": "500", "param": ["seed=7"], "raw": True, "max_retries": "2"}
    assert found.endpoints == {
        "a": {
            "base_url": "http://a/v1",
            "tokens": ["1k/1s", "2k/1m"],
            "headroom": "0.8",
            "headers": {"N": "1"},
        }
    }


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "redline.toml").write_bytes(b"\xef\xbb\xbf[run]\r\nrpm = 1\r\n")
    assert load(tmp_path, KINDS).run == {"rpm": "1"}


def test_the_environment_comes_before_dotenv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("PLANTED=file\nOTHER=file\nBARE\n")
    monkeypatch.setenv("PLANTED", "process")
    monkeypatch.delenv("OTHER", raising=False)
    environ = load(tmp_path, KINDS).environ
    assert (environ["PLANTED"], environ["OTHER"]) == ("process", "file")
    assert "BARE" not in environ


@pytest.mark.parametrize("key", [key for key in ENDPOINT_KEYS if key != "prices"])
def test_a_value_of_the_wrong_kind_is_refused(tmp_path: Path, key: str) -> None:
    base = "" if key == "base_url" else "base_url = 'http://a/v1'\n"
    wrong = ["[[1]]", "{ a = [1] }", "1979-05-27"]
    if ENDPOINT_KEYS[key] is not Kind.PAGE:
        wrong.append("true")
    for value in wrong:
        (tmp_path / "redline.toml").write_text(f"[endpoints.a]\n{base}{key} = {value}\n")
        with pytest.raises(ConfigError, match=f"^{key} must be ") as caught:
            load(tmp_path, KINDS)
        assert caught.value.where == "redline.toml, [endpoints.a]"
