"""Makes calls wait for limits: the queue, slots, and limiters for asyncio and for threads."""

from redline.limits.wait.blocking import SyncLimiter
from redline.limits.wait.grant import Grant
from redline.limits.wait.limiter import Limiter
from redline.limits.wait.queue import Waiter, WaitQueue, sole_loop
from redline.limits.wait.rate_limiter import RateLimiter
from redline.limits.wait.slots import Slots
