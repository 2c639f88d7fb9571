"""instructor as a client of the gateway at sys.argv[1]: prints what it got as JSON."""

from __future__ import annotations

import json
import sys

import instructor
import openai
from pydantic import BaseModel


class City(BaseModel):
    """What is asked for."""

    name: str
    inhabitants: int


HELLO = [{"role": "user", "content": "hello"}]


def main() -> None:
    inner = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
    found = {}
    for mode in ("TOOLS", "JSON_SCHEMA"):
        client = instructor.from_openai(inner, mode=getattr(instructor.Mode, mode))
        city = client.chat.completions.create(model="m", messages=HELLO, response_model=City)
        found[mode] = type(city).__name__
    client = instructor.from_openai(inner, mode=instructor.Mode.TOOLS)
    seen = [*client.chat.completions.create_partial(model="m", messages=HELLO, response_model=City)]
    found["stream"] = type(seen[-1]).__name__
    found["whole"] = isinstance(seen[-1].name, str) and isinstance(seen[-1].inhabitants, int)
    wrong = openai.OpenAI(base_url=sys.argv[1], api_key="rl-wrong", max_retries=0)
    try:
        wrong.chat.completions.create(model="m", messages=HELLO)
        found["refused"] = ""
    except openai.AuthenticationError as error:
        found["refused"] = type(error).__name__
    print(json.dumps(found))


main()
