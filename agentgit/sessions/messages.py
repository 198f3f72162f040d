"""Messages as agentgit shows them: dicts with `role`, `content`, `id`, `tool_calls`, `tool_call_id`.

A message also has `usage_metadata` if its model reported the usage. The stored form is LangChain's own
(`{"type": "ai", "data": {...}}`), but nothing here imports LangChain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from agentgit.values import OBJECT, TableList

ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}
_KEYS = frozenset({"role", "content", "id", "name", "tool_calls", "tool_call_id", "usage_metadata"})


def from_stored(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a stored message to the form that agentgit shows.

    Example:
        >>> from_stored({"type": "human", "data": {"content": "hi", "id": "m1"}})["role"]
        'user'
    """
    message_type, data = message.get("type", ""), message.get("data", {})
    usage = data.get("usage_metadata")
    return {
        "role": ROLES.get(message_type, message_type),
        "content": data.get("content"),
        "id": data.get("id"),
        "tool_calls": [
            {"id": call.get("id"), "name": call.get("name"), "args": call.get("args")}
            for call in data.get("tool_calls") or []
        ],
        "tool_call_id": data.get("tool_call_id"),
        **({"usage_metadata": usage} if usage else {}),
    }


def to_stored(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a shown message to the stored form, with the fields in LangChain's order; the inverse of `from_stored`.

    Example:
        >>> from_stored(to_stored({"role": "user", "content": "hi", "id": "m1"}))["id"]
        'm1'
    """
    kind = {role: kind for kind, role in ROLES.items()}.get(str(message.get("role")))
    calls = message.get("tool_calls") or [] if kind == "ai" else []
    if kind is None or not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"has no role of {', '.join(ROLES.values())}, or tool_calls that are not dicts")
    content = message.get("content")
    data: dict[str, Any] = {
        "content": "" if content is None else content,
        "additional_kwargs": {name: value for name, value in message.items() if name not in _KEYS},
        "response_metadata": {},
        "type": kind,
        "name": message.get("name"),
        "id": message.get("id"),
    }
    if kind == "ai":
        none: dict[str, Any] = {"name": None, "args": {}, "id": None}
        data["tool_calls"] = [
            {**{name: call.get(name) or default for name, default in none.items()}, "type": "tool_call"}
            for call in calls
        ]
        data |= {"invalid_tool_calls": [], "usage_metadata": message.get("usage_metadata") or None}
    if kind == "tool":
        data |= {"tool_call_id": message.get("tool_call_id"), "artifact": None, "status": "success"}
    return {"type": kind, "data": data}


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a shown message, whose content may be a string or a list of blocks."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(b if isinstance(b, str) else str(b.get("text", "")) for b in blocks)


def is_text(block: Any) -> bool:
    """Return whether a block of a message's content is text that a person wrote, not an image or a file."""
    return isinstance(block, str) or block.get("type", "text") == "text"


def with_text(content: Any, text: str) -> str | list[Any]:
    """Return the content of a message with another text. Other blocks, such as images and files, stay.

    Example:
        >>> with_text("a chair", "a sofa")
        'a sofa'
        >>> with_text([{"type": "image", "url": "https://a.example/b.png"}, {"type": "text", "text": "a"}, "b"], "c")
        [{'type': 'image', 'url': 'https://a.example/b.png'}, {'type': 'text', 'text': 'c'}]
    """
    blocks = content if isinstance(content, list) else []
    if all(map(is_text, blocks)):
        return text
    place = next((i for i, block in enumerate(blocks) if is_text(block)), 0)
    rest = [block for block in blocks[place:] if not is_text(block)]
    return [*blocks[:place], {"type": "text", "text": text}, *rest]


def unanswered_calls(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the ids of tool calls that have no result yet.

    Example:
        >>> unanswered_calls([{"role": "assistant", "tool_calls": [{"id": "c1"}]}])
        ['c1']
    """
    call_ids: dict[str, None] = {}
    for message in messages:
        if message["role"] == "tool":
            call_ids.pop(message["tool_call_id"], None)
        else:
            call_ids.update((call["id"], None) for call in message["tool_calls"])
    return list(call_ids)


def has_late_result(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a result stands after another message, where no provider takes it.

    Args:
        messages: A message of the model and those after it.

    Example:
        >>> has_late_result([{"role": "assistant"}, {"role": "user"}, {"role": "tool"}])
        True
    """
    is_result = [message["role"] == "tool" for message in messages[1:]]
    return False in is_result and any(is_result[is_result.index(False) :])


class History(TableList[dict[str, Any]]):
    """A list of shown messages in order. A notebook displays it folded."""

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "role": OBJECT,
        "content": OBJECT,
        "tool_calls": OBJECT,
        "tool_call_id": OBJECT,
        "usage_metadata": OBJECT,
        "id": OBJECT,
    }
