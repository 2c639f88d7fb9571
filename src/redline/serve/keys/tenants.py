"""Keeps the tenants of a gateway, each with the usage that counts against its limits."""

from __future__ import annotations

from collections.abc import Mapping

from redline.clock import SYSTEM, Clock
from redline.serve.keys.day_money import DAY_S
from redline.serve.keys.limit_store import OWN, LimitStore
from redline.serve.keys.tenant_limits import TenantLimits
from redline.serve.keys.tenant_settings import TenantSettings

_USUAL = TenantSettings()


class Tenant:
    """A user of the gateway, with limits and a share. It may have several keys."""

    __slots__ = ("limits", "name", "settings")

    def __init__(
        self, name: str, settings: TenantSettings, clock: Clock, store: LimitStore
    ) -> None:
        self.name = name
        self.settings = settings
        self.limits = TenantLimits(name, settings, clock, store)

    def reshape(self, settings: TenantSettings) -> None:
        """Replaces the settings; usage so far still counts against the limits."""
        if settings != self.settings:
            self.settings = settings
            self.limits.reshape(settings)

    def may_use(self, model: str) -> bool:
        models = self.settings.models
        return models is None or model in models


class Tenants:
    """Holds the tenants by name; a tenant that only a key names has no limits.

    A tenant and its counts stay until the process ends. store: where counts are kept. alone: the
    lock of the store.
    """

    def __init__(
        self,
        settings: Mapping[str, TenantSettings] | None = None,
        clock: Clock = SYSTEM,
        store: LimitStore = OWN,
    ) -> None:
        self.alone = store.alone
        self._store = store
        self._settings = dict(settings or {})
        self._clock = clock
        self._tenants: dict[str, Tenant] = {}
        # A day, and by tenant the picodollars that all processes have committed on that day.
        self._totals: tuple[int, Mapping[str, int]] = (0, {})

    def of(self, name: str) -> Tenant:
        """Returns the tenant with this name, which is created if it does not exist."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = Tenant(name, self._settings.get(name, _USUAL), self._clock, self._store)
            self._learn(tenant, 0)
            self._tenants[name] = tenant
        return tenant

    def replace(self, settings: Mapping[str, TenantSettings]) -> None:
        """Replaces the settings of all tenants."""
        self._settings = dict(settings)
        for tenant in self._tenants.values():
            tenant.reshape(self._settings.get(tenant.name, _USUAL))

    def unkept(self) -> tuple[int, dict[str, int]]:
        """Returns today, and by tenant the committed picodollars that are not saved yet.

        Today is the latest day that has begun, even if the clock was set back.
        """
        days = (tenant.limits.money.day for tenant in self._tenants.values())
        day = max(int(self._clock.wall_s() // DAY_S), self._totals[0], *days)
        found = {}
        for tenant in self._tenants.values():
            money = tenant.limits.money
            if money.day == day and (amount := money.unkept()):
                found[tenant.name] = amount
        return day, found

    def kept(self, day: int, told: Mapping[str, int], totals: Mapping[str, int]) -> None:
        """Records that the amounts `told` are now saved. totals: the file's amounts on that day."""
        self._totals = (day, totals)
        for tenant in self._tenants.values():
            self._learn(tenant, told.get(tenant.name, 0))

    def _learn(self, tenant: Tenant, told: int) -> None:
        """Takes over the amounts of other processes. `told`: the amount that is now saved."""
        day, totals = self._totals
        money = tenant.limits.money
        # For a tenant without calls today, the day begins here.
        money.begin(max(day, money.day))
        money.kept(day, told, totals.get(tenant.name, 0))
