"""Token usage of models, derived when somebody asks.

The newest graph checkpoint of a branch refers to all model calls on the path to it, also to those whose messages were
edited, removed or summarized since (`agentgit.store.threads.model_calls`). So the usage of a branch is that of the
replies after those that it began with. A message that reports its usage and that no model call recorded, because a node
asks a provider directly, counts while the conversation has it, on the branch that added it.
"""

from __future__ import annotations

from typing import Any

from agentgit.sessions.stats import UsedTokens, sum_usages
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.plain_values import MESSAGE_MSGPACK, MESSAGES, show_message
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import model_calls
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey

UNKNOWN_MODEL = "unknown"
"""The model of a message that does not name one."""

USAGE_MARKER = b'"usage_metadata":{'
"""Bytes that every message with usage has in its stored JSON form. Messages without them need not be parsed."""

MAX_COUNT = 2**53
MAX_MODEL_LENGTH = 200


class TokenUsage:
    def __init__(self, transaction: Reading, store: Store) -> None:
        self._connection, self._graphs, self._sessions = transaction, store.graphs, store.sessions
        self._recorded_ids: dict[int, set[str | None]] = {}

    def between(self, first: GraphCheckpoint | None, last: GraphCheckpoint | None) -> dict[str, UsedTokens]:
        """Return the usage, by model, of the model calls and messages that one state has beyond an earlier one."""
        if last is None:
            return {}
        replies = self._replies(last)[len(self._replies(first)) :]
        known = {*(self._graphs.message_hashes(self._connection, first) if first is not None else ()), *replies}
        others = [key for key in self._graphs.message_hashes(self._connection, last) if key not in known]
        blobs = self._graphs.blobs.of(last.session_id)
        leaves = blobs.get_many(self._connection, {*replies, *others})
        reports = [report for key in replies if (report := _reported_usage(leaves[key]))]
        direct = [report for key in others if (report := _reported_usage(leaves[key]))]
        if direct:  # replies that were edited, or merged from another branch, count where the model was called
            recorded_ids = self._ids_of_replies(last.session_id)
            reports += [report for report in direct if report[1] is None or report[1] not in recorded_ids]
        return sum_usages({model: tokens} for model, _, tokens in reports)

    def _replies(self, state: GraphCheckpoint | None) -> list[bytes]:
        """Return the hashes of the replies of all model calls on the path to a state."""
        if state is None or state.model_calls is None:
            return []
        return model_calls.reply_hashes(self._connection, self._graphs.content(state.session_id), state.model_calls)

    def _ids_of_replies(self, session_id: int) -> set[str | None]:
        """Return the ids of the messages with which models replied on the branches of a session."""
        if session_id not in self._recorded_ids:
            threads = [branch.thread_id for branch in self._sessions.branches(self._connection, session_id)]
            newest = [self._graphs.newest(self._connection, thread) for thread in threads]
            keys = {key for state in newest for key in self._replies(state)}
            leaves = self._graphs.blobs.of(session_id).get_many(self._connection, keys).values()
            self._recorded_ids[session_id] = {report[1] for one in leaves if (report := _reported_usage(one))}
        return self._recorded_ids[session_id]

    def of_branch(self, thread: str, first_id: str | None) -> dict[str, UsedTokens]:
        """Return the usage on a branch itself: up to its newest state, from the one that it began with."""
        first = self._graphs.find(self._connection, GraphKey(thread, "", first_id)) if first_id is not None else None
        return self.between(first, self._graphs.newest(self._connection, thread))


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
    id, metadata = data.get("id"), data.get("response_metadata")
    names = [metadata.get(name) for name in ("model_name", "model")] if isinstance(metadata, dict) else []
    model = next((name[:MAX_MODEL_LENGTH] for name in names if isinstance(name, str) and name), UNKNOWN_MODEL)
    return model, id if isinstance(id, str) else None, tokens


def _valid_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else 0
