"""Tenants as a file states them: a table [tenants.NAME] for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from redline.errors import ConfigError, nearest
from redline.job.settings import Kind, errors_in, settings_in, table_in, values
from redline.limits import Rate
from redline.limits.rule import MAX_CONCURRENCY
from redline.serve.keys.key_file import check_tenant

TENANT_KEYS = {
    "class": Kind.TEXT,
    "classes": Kind.LIST,
    "weight": Kind.TEXT,
    "requests": Kind.LIST,
    "tokens": Kind.LIST,
    "concurrency": Kind.TEXT,
    "money_per_day": Kind.TEXT,
    "models": Kind.LIST,
    "admin": Kind.FLAG,
}
_MOST_WEIGHT = 1_000.0


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may do.

    default_class: of its calls that ask for none. classes: all that it may ask for. weight: its
    share of a class, against those of other tenants. requests, tokens: all of these rates hold.
    concurrency: most calls in flight. picodollars_per_day: what it may spend on a day, UTC. models:
    those that it may ask for, None for all. is_admin: it may see the dashboard, and with it what
    others do.
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
    """The tenants of the table [tenants], by name.

    file: its name, for errors. classes: all that there are. Raises ConfigError that names the file
    and the table.
    """
    found = {}
    for name, table in table_in(tables, "tenants", file).items():
        check_tenant(name, f"{file}, [tenants]")
        where = f"{file}, [tenants.{name}]"
        stated = settings_in(table_in(table, f"tenants.{name}", file), TENANT_KEYS, where)
        with errors_in(where):
            found[name] = _tenant(stated, classes)
    return found


def _tenant(stated: Mapping[str, Any], classes: Collection[str]) -> TenantSettings:
    normal = "normal" if "normal" in classes else next(iter(classes))
    default = _known("class", stated.get("class", normal), classes)
    asked = [_known("classes", name, classes) for name in stated.get("classes", ())]
    return TenantSettings(
        default_class=default,
        classes=tuple(dict.fromkeys([default, *asked])),
        weight=_weight(stated),
        requests=values.rates(stated, "requests") or (),
        tokens=values.rates(stated, "tokens") or (),
        concurrency=values.whole(stated, "concurrency", 1, MAX_CONCURRENCY),
        picodollars_per_day=values.money(stated, "money_per_day"),
        models=_models(stated),
        is_admin=stated.get("admin", False),
    )


def _known(key: str, name: str, classes: Collection[str]) -> str:
    if name not in classes:
        raise ConfigError(
            f"{key}: there is no class {name}",
            hint=nearest(name, classes) or f"there are: {', '.join(classes)}",
        )
    return name


def _weight(stated: Mapping[str, Any]) -> float:
    weight = values.number(stated, "weight")
    if weight is None:
        return 1.0
    if not 0 < weight <= _MOST_WEIGHT:
        raise ConfigError(
            f"weight must be above 0 and at most {_MOST_WEIGHT:,.0f}, not {weight:g}",
            hint="2 is twice the share of a tenant with 1",
        )
    return weight


def _models(stated: Mapping[str, Any]) -> frozenset[str] | None:
    if "models" not in stated:
        return None
    models = frozenset(stated["models"])
    if not models:
        raise ConfigError("models is empty", hint="leave it out to allow all models")
    return models
