"""Combines endpoints into one backend that keeps each of them busy and survives their loss."""

from redline.route.balance import STRATEGIES, Asked, Figures, Strategy, strategy_of
from redline.route.endpoints import (
    EndpointPool,
    check_balance,
    check_distinct,
    check_endpoints,
    intake_of,
    seat_of,
)
from redline.route.health import Breaker
from redline.route.member import PoolMember, Seat
from redline.route.metrics_page import ServerFigures, read_metrics
from redline.route.pool import MOVED, Pool
