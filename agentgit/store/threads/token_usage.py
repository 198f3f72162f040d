"""Token usage of models, counted from the new messages when a graph checkpoint is stored.

The header of each graph checkpoint holds the sum over the path to it, as `usage`. A fork copies the sum. The usage of a
branch itself is the difference between its newest and its first graph checkpoint. The usage that a message reports is
counted once, however often the message is saved, and stays counted after the message is deleted or summarized.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agentgit.sessions.stats import UsedTokens, added
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.content import Body, Content, Encoded
from agentgit.store.objects.plain_values import MESSAGE_MSGPACK, MESSAGES, show_message
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey

KEY = "usage"
UNKNOWN = "unknown"
"""The model of a message that does not name one."""

MARK = b'"usage_metadata":{'
"""Bytes that every message with usage has in its stored JSON form. Messages without them need not be parsed."""

MOST = 2**53
LONGEST = 200


def read(header: Mapping[str, Any]) -> dict[str, UsedTokens]:
    """Return the usage in a header, by model. A value that is not a valid number counts as 0.

    Example:
        >>> read({"usage": {"m": [1, 20, 3]}})
        {'m': UsedTokens(messages=1, input=20, output=3, cache_read=0, cache_write=0)}
    """
    found = header.get(KEY)
    if not isinstance(found, dict):
        return {}
    most = len(UsedTokens._fields)
    return {
        model: UsedTokens(*map(_number, counts[:most])) for model, counts in found.items() if isinstance(counts, list)
    }


def usage_header(
    connection: Connection,
    content: Content,
    place: GraphKey,
    name: str | None,
    fresh: Mapping[str, Encoded],
    parent: GraphCheckpoint | None,
    *,
    counts: bool = True,
) -> dict[str, Any]:
    """Return the usage entry for the header of a new graph checkpoint; empty for a subgraph or without usage.

    Args:
        connection: Any open connection.
        content: The values of the tenant.
        place: The key of the graph checkpoint.
        name: The channel of its conversation; None if it has none.
        fresh: The values that the parent does not have.
        parent: The graph checkpoint that it continues.
        counts: False if its new messages come from another branch, which already counts them.
    """
    if place.ns:
        return {}
    header: Mapping[str, Any] = parent.header if parent is not None else {}
    found = header.get(KEY)
    if counts and name is not None and name in fresh:
        before = parent.values.get(name) if parent is not None and name in header["counts"] else None
        found = _counted(connection, content, fresh[name].body, before, header)
    return {KEY: found} if found else {}


def _counted(
    connection: Connection, content: Content, body: Body, before: bytes | None, header: Mapping[str, Any]
) -> dict[str, list[int]]:
    """Return the usage after a conversation, in the form that a header has.

    Args:
        connection: Any open connection.
        content: The values of the tenant.
        body: The conversation.
        before: The hash of the parent's conversation; None if it has none.
        header: The header of the parent.
    """
    part = body.get("messages", []) if isinstance(body, dict) else body
    items = part if isinstance(part, list) else []
    used = {item.hash: said for item in _new(connection, content, items, before) if (said := _reported_usage(item))}
    if used and before is not None:
        ids = {id for _, id, _ in used.values() if id is not None}
        if ids:
            again = _ids(connection, content, items, before)
            used = {key: said for key, said in used.items() if said[1] is None or said[1] not in again}
    sums = added([read(header), *({model: tokens} for model, _, tokens in used.values())])
    return {model: list(tokens if any(tokens[3:]) else tokens[:3]) for model, tokens in sums.items()}


def _new(connection: Connection, content: Content, items: Sequence[Leaf], before: bytes | None) -> Sequence[Leaf]:
    """Return the messages that the parent does not have."""
    had = content.items(connection, before) if before is not None else ()
    if not had:
        return items
    if len(items) >= len(had) and items[len(had) - 1].hash == had[-1]:  # by far the most common
        return items[len(had) :]
    known = set(had)
    return [item for item in items if item.hash not in known]


def _ids(connection: Connection, content: Content, items: Sequence[Leaf], before: bytes) -> set[str]:
    """Return the ids of the parent's messages with usage that were changed or removed: they are already counted."""
    had = content.items(connection, before)
    if len(items) >= len(had) and items[len(had) - 1].hash == had[-1]:
        return set()
    gone = set(had) - {item.hash for item in items}
    said = (_reported_usage(item) for item in content.blobs.get_many(connection, gone).values())
    return {one[1] for one in said if one is not None and one[1] is not None}


def _reported_usage(item: Leaf) -> tuple[str, str | None, UsedTokens] | None:
    """Return the model, id and tokens of a message; None if it does not report its usage."""
    if item.type not in MESSAGES or (item.type != MESSAGE_MSGPACK and MARK not in item.data):
        return None
    data = show_message(item)["data"]
    usage = data.get("usage_metadata") if isinstance(data, dict) else None
    if not isinstance(usage, dict):
        return None
    details = usage.get("input_token_details")
    cached = details if isinstance(details, dict) else {}
    tokens = UsedTokens(
        messages=1,
        input=_number(usage.get("input_tokens")),
        output=_number(usage.get("output_tokens")),
        cache_read=_number(cached.get("cache_read")),
        cache_write=_number(cached.get("cache_creation")),
    )
    id = data.get("id")
    return _model(data.get("response_metadata")), id if isinstance(id, str) else None, tokens


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST else 0


def _model(facts: Any) -> str:
    """Return the name of the model from the response metadata of a message."""
    names: Iterable[Any] = (facts.get(name) for name in ("model_name", "model")) if isinstance(facts, dict) else ()
    return next((name[:LONGEST] for name in names if isinstance(name, str) and name), UNKNOWN)
