"""Makes the tool calls of the simulated model, which calls tools only if the request forces it.

tool_choice               calls
none, auto or not given   none
required                  each tool once; only the first if parallel_tool_calls is false
a function                that function
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from redline.apis import chat
from redline.sim.answers.bodies import BadCall
from redline.sim.answers.schema import example


class ToolCall(NamedTuple):
    """One tool call. arguments: JSON that satisfies the schema of the tool's parameters."""

    tool: str
    arguments: str


def forced_calls(body: chat.Request, question: str) -> list[ToolCall]:
    """Returns the calls that the request forces. question: determines their arguments.

    Raises BadCall for a tool that is not offered, or a schema that cannot be satisfied.
    """
    tools = [tool.function for tool in body.tools or ()]
    if isinstance(body.tool_choice, chat.ToolChoice):
        wanted = body.tool_choice.function.name
        tools = [tool for tool in tools if tool.name == wanted]
        if not tools:
            raise BadCall(f"'tool_choice' names a tool that is not in 'tools': {wanted}")
    elif body.tool_choice != "required":
        return []
    if body.parallel_tool_calls is False:
        tools = tools[:1]
    calls = []
    for tool in tools:
        value = example(tool.parameters or {"type": "object"}, question)
        calls.append(ToolCall(tool.name, msgspec.json.encode(value).decode()))
    return calls
