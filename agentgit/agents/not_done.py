"""The error with which a tool reports that it did nothing."""

from __future__ import annotations

from langchain_core.tools import ToolException

from agentgit.effects.results import NothingDone


class NotDone(NothingDone, ToolException):
    """Raise this in a tool to report an error and to state that the call changed nothing in the world.

    With any other error it is not known whether the call acted before it raised, so a compensable or irreversible call
    becomes `unknown`. A call that raises `NotDone` is `failed`: it does not block a rollback, and can be made again.

    `NotDone` is a LangChain `ToolException`, so the model sees it like any tool error: through `handle_tool_error=True`
    on the tool, or through the error handling of its `ToolNode`.

    It applies only to the tool that raises it. If a tool calls another tool and lets its `NotDone` propagate, this
    states nothing about the outer call. Catch it in the outer tool and raise a new `NotDone` there.

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
