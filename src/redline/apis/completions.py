"""POST /v1/completions: prompts in, a text for each choice out.

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

from redline.apis.api import Api
from redline.apis.choices import read, read_usual

COMPLETIONS = Api(path="/v1/completions", is_streamed=True, read=read, read_usual=read_usual)
