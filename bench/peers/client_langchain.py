"""langchain-openai as a client of the gateway at sys.argv[1]: prints what it got as JSON."""

from __future__ import annotations

import json
import sys

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

BASE = {"model": "m", "base_url": sys.argv[1], "max_retries": 0}


def look_up(city: str) -> str:
    """Looks up a city."""
    return city


def main() -> None:
    chat = ChatOpenAI(api_key=sys.argv[2], **BASE)
    parts = [str(chunk.content) for chunk in chat.stream("hello")]
    called = chat.bind_tools([look_up], tool_choice="look_up").invoke("hello")
    embedder = OpenAIEmbeddings(api_key=sys.argv[2], check_embedding_ctx_length=False, **BASE)
    try:
        ChatOpenAI(api_key="rl-wrong", **BASE).invoke("hello")
        refused = ""
    except openai.AuthenticationError:
        refused = openai.AuthenticationError.__name__
    found = {
        "call": chat.invoke("hello").content,
        "stream": "".join(parts),
        "chunks": len(parts),
        "tool": called.tool_calls[0]["name"],
        "embeddings": len(embedder.embed_documents(["a", "b"])),
        "refused": refused,
    }
    print(json.dumps(found))


main()
