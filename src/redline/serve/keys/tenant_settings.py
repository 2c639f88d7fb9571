"""Reads tenants from a settings file, which has a table [tenants.NAME] for each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from redline.calls.cost import parse_money
from redline.errors import ConfigError, nearest
from redline.job.settings import Kind, Option, errors_in, fields_in, table_in, values
from redline.limits import Rate
from redline.limits.rule import MAX_CONCURRENCY
from redline.serve.keys.key_file import check_tenant

_MOST_WEIGHT = 1_000.0


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and rights of a tenant.

    default_class: the class of calls that request no class, or one that is not in `classes`.
    classes: the classes that the tenant may request. weight: its share of a class, relative to
    other tenants. requests, tokens: rate limits, all of which apply. concurrency: the most calls in
    flight; None for no limit. picodollars_per_day: the most that the tenant may spend on one day,
    UTC; None for no limit. models: the models that it may use; None for all. is_admin: whether it
    may see the dashboard, which shows all tenants.
    """

    default_class: str = "normal"
    classes: tuple[str, ...] = ("normal",)
    weight: float = 1.0
    requests: tuple[Rate, ...] = ()
    tokens: tuple[Rate, ...] = ()
    concurrency: int | None = None
    picodollars_per_day: int | None = None
    models: frozenset[str] | None = None
    is_admin: bool = False


def parse_tenants(tables: object, file: str, classes: Collection[str]) -> dict[str, TenantSettings]:
    """Returns the tenants of the table [tenants], by name.

    tables: the value of [tenants]. file: the file's name, for errors. classes: the names of all
    classes. Raises ConfigError, which names the file and the table.
    """
    found = {}
    for name, table in table_in(tables, "tenants", file).items():
        check_tenant(name, f"{file}, [tenants]")
        stated = fields_in(table, f"tenants.{name}", file, TENANT_OPTIONS)
        with errors_in(f"{file}, [tenants.{name}]"):
            found[name] = _tenant(stated, classes)
    return found


def _tenant(stated: dict[str, Any], classes: Collection[str]) -> TenantSettings:
    normal = "normal" if "normal" in classes else next(iter(classes))
    default = _known("class", stated.pop("class", normal), classes)
    asked = [_known("classes", name, classes) for name in stated.pop("classes", ())]
    return TenantSettings(
        default_class=default, classes=tuple(dict.fromkeys([default, *asked])), **stated
    )


def _known(key: str, name: str, classes: Collection[str]) -> str:
    if name not in classes:
        raise ConfigError(
            f"{key}: there is no class {name}",
            hint=nearest(name, classes) or f"the classes are: {', '.join(classes)}",
        )
    return name


def _weight(text: str, name: str) -> float:
    weight = values.number(text, name)
    if not 0 < weight <= _MOST_WEIGHT:
        raise ConfigError(
            f"weight must be above 0 and at most {_MOST_WEIGHT:,.0f}, not {weight:g}",
            hint="a tenant with weight 2 gets twice the share of a tenant with weight 1",
        )
    return weight


def _models(names: Sequence[str], name: str) -> frozenset[str]:
    if not names:
        raise ConfigError(f"{name} is empty", hint="leave it out to allow all models")
    return frozenset(names)


TENANT_OPTIONS = (
    Option(key="class"),
    Option(key="classes", kind=Kind.LIST),
    Option(key="weight", read=_weight),
    Option(key="requests", kind=Kind.LIST, read=values.rates),
    Option(key="tokens", kind=Kind.LIST, read=values.rates),
    Option(key="concurrency", read=partial(values.whole, least=1, most=MAX_CONCURRENCY)),
    Option(key="money_per_day", field="picodollars_per_day", read=parse_money),
    Option(key="models", kind=Kind.LIST, read=_models),
    Option(key="admin", field="is_admin", kind=Kind.FLAG),
)
