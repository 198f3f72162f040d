"""Results and errors of calls: comparing results, and what an error proves. Pure."""

from __future__ import annotations

from typing import Any

SERIALIZED_KEY = "agentgit_packed"
"""The key in the record of a `Command` or a message that holds the serialized object, if it can be rebuilt."""


def comparable(result: Any) -> Any:
    """Return a recorded result without call ids and serialized objects, so that two results can be compared."""
    return _without_ids(result) if isinstance(result, dict) and SERIALIZED_KEY in result else result


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    dropped_keys = {SERIALIZED_KEY, "tool_call_id"} if value.get("type") == "tool" else {SERIALIZED_KEY}
    return {name: _without_ids(item) for name, item in value.items() if name not in dropped_keys}


def returned_error(result: Any) -> str | None:
    """Return the text of the error message that a tool returned, as recorded, also in a command; None without one."""
    if not isinstance(result, dict) or SERIALIZED_KEY not in result:
        return None
    returned = result.get("returned", [result])
    messages: list[Any] = []
    for one in returned if isinstance(returned, list) else ():
        update = one.get("update") if isinstance(one, dict) else None
        lists = update.values() if isinstance(update, dict) else ()
        messages += [one, *(item for values in lists if isinstance(values, list) for item in values)]
    told = [one for one in messages if isinstance(one, dict) and one.get("type") == "tool"]  # its own stands last
    return str(told[-1].get("content")) if told and told[-1].get("status") == "error" else None


class NothingDone(Exception):  # not an AgentGitError: it only marks the errors of tools
    """The part of `agentgit.NotDone` that does not need LangChain."""

    raised_by: Any = None
    """The call that raised it first. It proves nothing about an outer call that it only passes through."""
