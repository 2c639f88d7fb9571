"""Finds the tenant of a request by its key, and applies the tenant's limits."""

from redline.serve.keys.day_money import DAY_S
from redline.serve.keys.key_file import Key, add_key, read_keys, revoke_key
from redline.serve.keys.keyring import DEFAULT_TENANT, InvalidKey, Keyring
from redline.serve.keys.limit_store import OWN, LimitStore
from redline.serve.keys.shared_store import SharedStore
from redline.serve.keys.spending_file import SpendingFile, SpendingKeeper, spending_path
from redline.serve.keys.tenant_limits import Refused, Started, TenantLimits
from redline.serve.keys.tenant_settings import TENANT_OPTIONS, TenantSettings, parse_tenants
from redline.serve.keys.tenants import Tenant, Tenants
from redline.serve.keys.window import EXACT, SlidingWindow
