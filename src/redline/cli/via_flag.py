"""The flag that says whether rows go through the Batch API."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from redline.cli.command import one_of
from redline.run.settings import VIAS

ViaFlag = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="live; batch: rows go through the provider's Batch API, at half the price and within "
        "a day; or auto: in batches while --deadline allows, and the rest live. Default: live.",
        autocompletion=one_of(*VIAS),
        rich_help_panel="What it may cost",
    ),
]
