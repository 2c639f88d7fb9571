"""The flags that say what a run may cost."""

from __future__ import annotations

from typing import Annotated

from redline.cli.flags import Option

_COST = "What it may cost"

BudgetFlag = Annotated[
    str | None,
    Option(
        metavar="MONEY",
        help="The most that all runs of this output may spend, such as 5usd. Never passed where "
        "--max-tokens bounds the answers.",
        section=_COST,
    ),
]
BudgetTokensFlag = Annotated[
    str | None,
    Option(
        metavar="N",
        help="The same in tokens, input and output together, such as 2m.",
        section=_COST,
    ),
]
