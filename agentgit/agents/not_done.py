"""The error by which a tool says that it did nothing."""

from __future__ import annotations

from langchain_core.tools import ToolException

from agentgit.effects.results import NothingDone


class NotDone(NothingDone, ToolException):
    """Raise this in a tool to report an error and say that the call did nothing in the world.

    Any other error leaves it open whether the call acted before it raised, and a compensable or irreversible call is
    `unknown` then. A call that raises `NotDone` is `failed`: it does not block a rollback, and it may be made again.

    It is a LangChain `ToolException`, so the model sees it as any error of a tool: through `handle_tool_error=True` on
    the tool, or through the error handling of its `ToolNode`.

    It speaks only for the tool that raises it. If a tool calls another one and lets its `NotDone` pass, nothing is said
    about the outer call; catch it there and raise a new one.

    Args:
        *args: The message, as for any exception.

    Example:
        >>> from langchain_core.tools import tool
        >>> @tool
        ... def pay(euros: int) -> str:
        ...     "Pay."
        ...     if euros > 100:
        ...         raise NotDone("the card was declined")
        ...     return "paid"
        >>> pay.invoke({"euros": 500})
        Traceback (most recent call last):
        agentgit.agents.not_done.NotDone: the card was declined
    """
