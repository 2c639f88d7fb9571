"""The flags that say what a run may cost."""

from __future__ import annotations

from typing import Annotated

from typer import Option

_COST = "What it may cost"

BudgetFlag = Annotated[
    str | None,
    Option(
        metavar="MONEY",
        help="The most that all runs of this output may spend, such as 5usd. Never passed where "
        "--max-tokens bounds the answers.",
        rich_help_panel=_COST,
    ),
]
BudgetTokensFlag = Annotated[
    str | None,
    Option(
        metavar="N",
        help="The same in tokens, input and output together, such as 2m.",
        rich_help_panel=_COST,
    ),
]
