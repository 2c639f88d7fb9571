"""What stands behind `engine:MODEL?` means what the flags of `redline engine` mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from redline.cli.flags import settings_in, settings_of
from redline.engine import EngineSettings
from redline.errors import ConfigError


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", EngineSettings(model="m")),
        ("lookup", EngineSettings(model="m", has_lookup=True)),
        ("lookup=1&no-prefix-reuse=true", EngineSettings(
            model="m", has_lookup=True, reuses_prefixes=False)),
        ("lookup=false&no_prefix_reuse=0", EngineSettings(model="m")),
        ("lookup=1&lookup=0", EngineSettings(model="m")),
        ("draft_model=a+b%26c", EngineSettings(model="m", draft_model="a+b&c")),
        ("max_wait_time=0", EngineSettings(model="m", max_wait_s=0.0)),
        ("max_wait_time=5ms&max_batch_size=8", EngineSettings(
            model="m", max_wait_s=0.005, max_batch_size=8)),
    ],
)  # fmt: skip
def test_settings(query: str, expected: EngineSettings) -> None:
    assert settings_in(f"m?{query}") == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("m?lookup=maybe", "--lookup must be true or false, not maybe"),
        ("m?draft_model=", "--draft-model names no model"),
        ("m?draft_modle=a", "engine:m has no setting draft_modle"),
        ("m?max_wait_time=90s", "--max-wait-time must be 0 s or more and at most 60 s, not 90s"),
        ("?lookup", "no model is named"),
    ],
)
def test_what_cannot_be_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_in(text)
    assert caught.value.what == what


def test_home_folders_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = settings_in("~/big?draft_model=~/small")
    assert (found.model, found.draft_model) == (f"{tmp_path}/big", f"{tmp_path}/small")
    assert settings_of("./a~b", {}).model == "./a~b"
