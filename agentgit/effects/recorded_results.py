"""Results in the record: what they say, apart from how they are kept and which call they answered."""

from __future__ import annotations

from typing import Any

PACKED = "agentgit_packed"
"""The key in the record of a `Command` or a message that holds the object itself, if that can be built again."""


def said(result: Any) -> Any:
    """Return what a recorded result says, so that two calls of a tool can be compared.

    Args:
        result: The result as it was recorded, JSON-like.

    Example:
        >>> said({"type": "tool", "content": "done", "tool_call_id": "call-7", PACKED: "x7kF"})
        {'type': 'tool', 'content': 'done'}
    """
    return _unaddressed(result) if isinstance(result, dict) and PACKED in result else result


def _unaddressed(value: Any) -> Any:
    if isinstance(value, list):
        return [_unaddressed(one) for one in value]
    if not isinstance(value, dict):
        return value
    left = {PACKED, "tool_call_id"} if value.get("type") == "tool" else {PACKED}
    return {name: _unaddressed(one) for name, one in value.items() if name not in left}
