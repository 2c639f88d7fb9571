"""Shares rates between processes through a file or Redis, and slots through shared memory."""

from redline.limits.shared.file_ledger import FileLedger
from redline.limits.shared.flights import Flights, OwnFlights, SharedFlights
from redline.limits.shared.ledger import check_ledger, open_ledger
from redline.limits.shared.limiter import GIVE_UP_S, SharedLimiter, Slot
from redline.limits.shared.redis_ledger import RedisLedger
from redline.limits.shared.schedule import (
    STALE_S,
    Book,
    Change,
    Lease,
    LeaseRequest,
    State,
    described,
    lease_s_of,
    rated,
    rules_of,
    transact,
)
from redline.limits.shared.shared_slots import (
    LOOK_S,
    Demand,
    SharedCount,
    SharedSlots,
    Sharer,
)
