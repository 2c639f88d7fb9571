"""The flag that says whether rows go through the Batch API."""

from __future__ import annotations

from typing import Annotated

from redline.cli.command import one_of
from redline.cli.flags import Option
from redline.run.settings import VIAS

ViaFlag = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="live; batch: rows go through the provider's Batch API, at half the price and within "
        "a day; or auto: in batches while --deadline allows, and the rest live. Default: live.",
        complete=one_of(*VIAS),
        section="What it may cost",
    ),
]
