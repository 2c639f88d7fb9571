"""POST /v1/chat/completions: messages in, a message for each choice out.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from redline.apis.api import Api
from redline.apis.choices import read, read_usual

CHAT = Api(
    path="/v1/chat/completions",
    prompt="messages",
    has_system=True,
    is_streamed=True,
    read=read,
    read_usual=read_usual,
)
