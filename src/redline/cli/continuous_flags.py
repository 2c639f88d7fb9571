"""The flags of work that does not end with what is there."""

from __future__ import annotations

from typing import Annotated

from redline.cli.flags import Option

CONTINUOUS = "Work that goes on"

FollowFlag = Annotated[
    bool,
    Option(
        "--follow",
        help="After the last row of a JSONL file, wait for more, as tail -F does. Ctrl-C ends it.",
        section=CONTINUOUS,
    ),
]
UntilEmptyFlag = Annotated[
    bool,
    Option(
        "--until-empty",
        help="End when every message of the stream is acknowledged. Default: wait for more.",
        section=CONTINUOUS,
    ),
]
