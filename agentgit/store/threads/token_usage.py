"""Token usage of models, counted from the new messages when a graph checkpoint is stored.

The header of each graph checkpoint holds the sum over the path to it, as `usage`. A fork copies the sum. The usage of a
branch itself is the difference between its newest and its first graph checkpoint. The usage that a message reports is
counted once, however often the message is saved, and stays counted after the message is deleted or summarized.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agentgit.sessions.stats import UsedTokens, sum_usages
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.content import Body, Content, Encoded
from agentgit.store.objects.plain_values import MESSAGE_MSGPACK, MESSAGES, show_message
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey

HEADER_KEY = "usage"
UNKNOWN_MODEL = "unknown"
"""The model of a message that does not name one."""

USAGE_MARKER = b'"usage_metadata":{'
"""Bytes that every message with usage has in its stored JSON form. Messages without them need not be parsed."""

MAX_COUNT = 2**53
MAX_MODEL_LENGTH = 200


def read(header: Mapping[str, Any]) -> dict[str, UsedTokens]:
    """Return the usage in a header, by model. A value that is not a valid number counts as 0.

    Example:
        >>> read({"usage": {"m": [1, 20, 3]}})
        {'m': UsedTokens(messages=1, input=20, output=3, cache_read=0, cache_write=0)}
    """
    entries = header.get(HEADER_KEY)
    if not isinstance(entries, dict):
        return {}
    field_count = len(UsedTokens._fields)
    return {
        model: UsedTokens(*map(_valid_count, counts[:field_count]))
        for model, counts in entries.items()
        if isinstance(counts, list)
    }


def usage_header(
    connection: Connection,
    content: Content,
    graph_key: GraphKey,
    channel: str | None,
    new_values: Mapping[str, Encoded],
    parent: GraphCheckpoint | None,
    *,
    is_counted: bool = True,
) -> dict[str, Any]:
    """Return the usage entry for the header of a new graph checkpoint; empty for a subgraph or without usage."""
    if graph_key.ns:
        return {}
    header: Mapping[str, Any] = parent.header if parent is not None else {}
    usage = header.get(HEADER_KEY)
    if is_counted and channel is not None and channel in new_values:
        parent_hash = parent.values.get(channel) if parent is not None and channel in header["counts"] else None
        usage = _count_usage(connection, content, new_values[channel].body, parent_hash, header)
    return {HEADER_KEY: usage} if usage else {}


def _count_usage(
    connection: Connection, content: Content, body: Body, parent_hash: bytes | None, header: Mapping[str, Any]
) -> dict[str, list[int]]:
    """Return the usage after a conversation, in the form that a header has."""
    messages = body.get("messages", []) if isinstance(body, dict) else body
    items = messages if isinstance(messages, list) else []
    reports = {
        item.hash: report
        for item in _new_messages(connection, content, items, parent_hash)
        if (report := _reported_usage(item))
    }
    if reports and parent_hash is not None:
        ids = {id for _, id, _ in reports.values() if id is not None}
        if ids:
            counted_ids = _replaced_ids(connection, content, items, parent_hash)
            reports = {
                key: report for key, report in reports.items() if report[1] is None or report[1] not in counted_ids
            }
    sums = sum_usages([read(header), *({model: tokens} for model, _, tokens in reports.values())])
    return {model: list(tokens if any(tokens[3:]) else tokens[:3]) for model, tokens in sums.items()}


def _new_messages(
    connection: Connection, content: Content, items: Sequence[Leaf], parent_hash: bytes | None
) -> Sequence[Leaf]:
    """Return the messages that the parent does not have."""
    parent_hashes = content.item_hashes(connection, parent_hash) if parent_hash is not None else ()
    if not parent_hashes:
        return items
    if (
        len(items) >= len(parent_hashes) and items[len(parent_hashes) - 1].hash == parent_hashes[-1]
    ):  # by far the most common
        return items[len(parent_hashes) :]
    known_hashes = set(parent_hashes)
    return [item for item in items if item.hash not in known_hashes]


def _replaced_ids(connection: Connection, content: Content, items: Sequence[Leaf], parent_hash: bytes) -> set[str]:
    """Return the ids of the parent's messages with usage that were changed or removed: they are already counted."""
    parent_hashes = content.item_hashes(connection, parent_hash)
    if len(items) >= len(parent_hashes) and items[len(parent_hashes) - 1].hash == parent_hashes[-1]:
        return set()
    removed_hashes = set(parent_hashes) - {item.hash for item in items}
    reports = (_reported_usage(item) for item in content.blobs.get_many(connection, removed_hashes).values())
    return {report[1] for report in reports if report is not None and report[1] is not None}


def _reported_usage(item: Leaf) -> tuple[str, str | None, UsedTokens] | None:
    """Return the model, id and tokens of a message; None if it does not report its usage."""
    if item.type not in MESSAGES or (item.type != MESSAGE_MSGPACK and USAGE_MARKER not in item.data):
        return None
    data = show_message(item)["data"]
    usage = data.get("usage_metadata") if isinstance(data, dict) else None
    if not isinstance(usage, dict):
        return None
    details = usage.get("input_token_details")
    cache_details = details if isinstance(details, dict) else {}
    tokens = UsedTokens(
        messages=1,
        input=_valid_count(usage.get("input_tokens")),
        output=_valid_count(usage.get("output_tokens")),
        cache_read=_valid_count(cache_details.get("cache_read")),
        cache_write=_valid_count(cache_details.get("cache_creation")),
    )
    id = data.get("id")
    return _model_name(data.get("response_metadata")), id if isinstance(id, str) else None, tokens


def _valid_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else 0


def _model_name(metadata: Any) -> str:
    """Return the name of the model from the response metadata of a message."""
    names: Iterable[Any] = (
        (metadata.get(name) for name in ("model_name", "model")) if isinstance(metadata, dict) else ()
    )
    return next((name[:MAX_MODEL_LENGTH] for name in names if isinstance(name, str) and name), UNKNOWN_MODEL)
