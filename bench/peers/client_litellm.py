"""litellm as a client of the gateway at sys.argv[1]: prints what it got as JSON."""

from __future__ import annotations

import json
import sys

import litellm

BASE = {"model": "openai/m", "api_base": sys.argv[1], "api_key": sys.argv[2]}
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def main() -> None:
    whole = litellm.completion(messages=HELLO, **BASE)
    stream = litellm.completion(messages=HELLO, stream=True, **BASE)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream]
    choice = {"type": "function", "function": {"name": "look_up"}}
    called = litellm.completion(messages=HELLO, tools=[TOOL], tool_choice=choice, **BASE)
    vectors = litellm.embedding(input=["a", "b"], **BASE)
    try:
        litellm.completion(messages=HELLO, **{**BASE, "api_key": "rl-wrong"})
        refused = ""
    except litellm.AuthenticationError as error:
        refused = type(error).__name__
    found = {
        "call": whole.choices[0].message.content,
        "stream": "".join(parts),
        "chunks": len(parts),
        "tool": called.choices[0].message.tool_calls[0].function.name,
        "embeddings": len(vectors.data),
        "refused": refused,
    }
    print(json.dumps(found))


main()
