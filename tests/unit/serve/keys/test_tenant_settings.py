"""[tenants.NAME] as a file states it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.limits import Rate
from redline.serve.keys import TenantSettings, parse_tenants

GOOD = """
[tenants.acme]
class = "high"
classes = ["normal", "low"]
weight = 2.5
requests = ["60/60s", "5/1s"]
tokens = "200k/min"
concurrency = 8
money_per_day = "20usd"
models = ["gpt-4o-mini", "qwen3-8b"]

[tenants."team.b"]
"""

CLASSES = ("high", "normal", "low")


def tenants(text: str) -> dict[str, TenantSettings]:
    return parse_tenants(tomllib.loads(text)["tenants"], "redline.toml", CLASSES)


def test_a_tenant_with_everything_and_one_with_nothing() -> None:
    found = tenants(GOOD)
    assert found["team.b"] == TenantSettings()
    assert found["acme"] == TenantSettings(
        default_class="high",
        classes=("high", "normal", "low"),
        weight=2.5,
        requests=(Rate(60, 60.0), Rate(5, 1.0)),
        tokens=(Rate(200_000, 60.0),),
        concurrency=8,
        picodollars_per_day=20 * 10**12,
        models=frozenset({"gpt-4o-mini", "qwen3-8b"}),
    )


def test_the_class_is_one_that_it_may_ask_for() -> None:
    assert tenants('[tenants.a]\nclass = "low"')["a"].classes == ("low",)
    assert tenants('[tenants.a]\nclasses = "high"')["a"].classes == ("normal", "high")


def test_classes_of_other_names() -> None:
    assert parse_tenants({"a": {}}, "f", ("gold", "silver"))["a"].default_class == "gold"


@pytest.mark.parametrize(
    ("old", "new", "what", "hint"),
    [
        ("weight", "wieght", "unknown setting: wieght", "did you mean weight?"),
        ("weight = 2.5", "weight = 0", "weight must be above 0 and at most 1,000, not 0", "twice"),
        (
            "weight = 2.5",
            "weight = -1",
            "weight must be above 0 and at most 1,000, not -1",
            "twice",
        ),
        ("weight = 2.5", "weight = true", "weight must be text or a number", ""),
        ("weight = 2.5", 'weight = "nan"', "weight is not a number: nan", "0.8"),
        ('"high"', '"hihg"', "class: there is no class hihg", "did you mean high?"),
        (
            '"low"]',
            '"batch"]',
            "classes: there is no class batch",
            "the classes are: high, normal, low",
        ),
        ('"5/1s"', '"5"', "requests is not a rate: 5", "2/1s"),
        ('"5/1s"', '"0/1s"', "requests must be a whole number from 1 to 10^12, not 0", ""),
        ('"200k/min"', '"many"', "tokens is not a rate: many", "200k/60s"),
        ("concurrency = 8", "concurrency = 0", "concurrency must be ", ""),
        ('"20usd"', "20", "money_per_day is not an amount of money: 20", "5usd"),
        ('"20usd"', '"0usd"', "money_per_day is zero, too large or too precise: 0usd", "5usd"),
        ('["gpt-4o-mini", "qwen3-8b"]', "[]", "models is empty", "leave it out"),
        ("[tenants.acme]", "[tenants.acme]\na.b = 1", "unknown setting: a", ""),
    ],
)
def test_a_mistake_is_told_with_its_file_and_table(
    old: str, new: str, what: str, hint: str
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        tenants(GOOD.replace(old, new, 1))
    assert caught.value.what.startswith(what)
    assert caught.value.where == "redline.toml, [tenants.acme]"
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        (5, "tenants must be a table"),
        ({"a": 5}, "tenants.a must be a table"),
        ({"a b": {}}, "not a tenant's name: a b"),
    ],
)
def test_what_is_no_tenant(tables: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tenants(tables, "redline.toml", CLASSES)
    assert caught.value.what == what
    assert caught.value.where.startswith("redline.toml")


@pytest.mark.parametrize(("stated", "is_admin"), [("", False), ("false", False), ("true", True)])
def test_only_admin_true_makes_an_admin(stated: str, is_admin: bool) -> None:
    line = f"admin = {stated}" if stated else ""
    assert tenants(f"[tenants.a]\n{line}")["a"].is_admin is is_admin
