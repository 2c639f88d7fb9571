"""Keeps calls within a budget: prices by model, and a reservation for each attempt."""

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
