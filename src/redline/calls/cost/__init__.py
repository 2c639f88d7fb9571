"""Prices by model, and the budget that every attempt is reserved from."""

from redline.calls.cost.metered import Metered, may_be_billed
from redline.calls.cost.prices import BATCH_DIVISOR, DOLLAR, PRICE_KEYS, Price, Prices, parse_price
from redline.calls.cost.spending import (
    NOTHING,
    Allowance,
    Amount,
    Spending,
    dollars_text,
    parse_money,
)
