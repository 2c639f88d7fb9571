"""Keeps calls within a budget, from which the cost of each attempt is reserved by prices."""

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
