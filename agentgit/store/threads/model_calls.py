"""Model calls of a session: what each model was asked, and what it replied.

Each graph checkpoint of the root graph refers to two lists about all model calls on the path to it. One has the
messages that models received and returned, and their options (tools and output format); most of these are messages of
the state, which the session stores only once. The other has an item for each step that called models: JSON that names
the messages of each call by their positions in the first list, as ranges. Both lists are stored like that of a
conversation, so they cost only what is new, and a fork, an export or a collection keeps them with the graph checkpoint.

The calls of a step that ended without a graph checkpoint, because a person is asked or a task failed, are kept as a
write on top of the graph checkpoint before. It refers to lists that continue those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from agentgit.errors import Corrupt
from agentgit.next_steps import Next
from agentgit.store.objects.blobs import Leaf, NewValues, compact, leaf, list_hash, shared_prefix
from agentgit.store.objects.content import Content
from agentgit.store.objects.packing import HASH_BYTES, split_hashes
from agentgit.store.objects.plain_values import JSON
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import MODEL_CALLS, MODEL_MESSAGES, NewModelCall, NewModelCalls
from agentgit.values import as_object

RECENT = 64
"""The number of newest messages of the state that need not be stored again with a call."""

WRITE_INDEX = -16
"""The index of the write with the calls of an unfinished step. LangGraph uses smaller negative numbers."""


class RecordedModelCall(NamedTuple):
    step: int
    messages: Sequence[Leaf]
    options: Leaf | None
    reply: Leaf
    is_in_tool: bool


def named(hashes: bytes | None) -> dict[str, bytes]:
    """Return the two hashes of model calls by the names under which a graph checkpoint keeps them."""
    return dict(zip((MODEL_CALLS, MODEL_MESSAGES), split_hashes(hashes or b""), strict=False))


def encode(
    transaction: Reading,
    content: Content,
    new: NewModelCalls,
    earlier: bytes | None,
    conversation: bytes | None,
    new_values: NewValues,
) -> bytes | None:
    """Return the hashes of the lists with some more calls, and collect what has to be stored; None for empty lists."""
    if not new.calls and not new.rewritten:
        return earlier
    calls_before, messages_before = split_hashes(earlier) if earlier is not None else (None, None)
    messages = _Messages(content.item_hashes(transaction, messages_before) if messages_before is not None else ())
    messages.rewrite(new.rewritten)
    calls = [messages.refer(call) for call in new.calls]
    new_steps = [leaf(JSON, compact({"step": new.step, "calls": calls}))] if calls else []
    steps = content.item_hashes(transaction, calls_before) if calls_before is not None else ()
    stored = content.item_hashes(transaction, conversation)[-RECENT:] if conversation is not None else ()
    lists = [((*steps, *(step.hash for step in new_steps)), calls_before), (tuple(messages.hashes), messages_before)]
    keyed_lists = [(list_hash(hashes), hashes, before) for hashes, before in lists]
    leaves = [*new_steps, *(item for item in messages.new_leaves if item.hash not in stored)]
    content.blobs.encode(transaction, leaves, keyed_lists, new_values)
    return b"".join(key for key, _, _ in keyed_lists)


class _Messages:
    """The list of messages and options that calls refer to by position."""

    def __init__(self, hashes: Sequence[bytes]) -> None:
        self.hashes = list(hashes)
        self.new_leaves: list[Leaf] = []
        self._by_hash = dict(zip(hashes, range(len(hashes)), strict=True))

    def rewrite(self, items: Mapping[bytes, Leaf]) -> None:
        """Replace items by others, which take their positions."""
        for key, item in items.items():
            if key in self._by_hash:
                position = self._by_hash[item.hash] = self._by_hash[key]
                self.hashes[position] = item.hash
                self.new_leaves.append(item)

    def refer(self, call: NewModelCall) -> dict[str, Any]:
        """Return the fields of a call, and add the items that the list lacks."""
        fields: dict[str, Any] = {"messages": self._ranges(call.messages)}
        fields["reply"] = self._position(call.reply)
        if call.options is not None:
            fields["options"] = self._position(call.options)
        if call.is_in_tool:
            fields["in_tool"] = True
        return fields

    def _ranges(self, messages: Sequence[Leaf]) -> list[list[int]]:
        """Return the ranges of the list that hold the messages, each as its first position and its length."""
        hashes = [item.hash for item in messages]
        ranges: list[list[int]] = []
        done = 0
        while done < len(hashes):
            start = self._position(messages[done])
            length = shared_prefix(hashes[done:], self.hashes[start:])
            if ranges and sum(ranges[-1]) == start:
                ranges[-1][1] += length
            else:
                ranges.append([start, length])
            done += length
        return ranges

    def _position(self, item: Leaf) -> int:
        position = self._by_hash.get(item.hash)
        if position is None:
            position = self._by_hash[item.hash] = len(self.hashes)
            self.hashes.append(item.hash)
            self.new_leaves.append(item)
        return position


def read(transaction: Reading, content: Content, hashes: bytes) -> list[RecordedModelCall]:
    """Return the calls of stored lists, in order."""
    steps, messages = (
        content.blobs.leaves(transaction, content.item_hashes(transaction, key)) for key in split_hashes(hashes)
    )
    with _reporting_damage(hashes):
        return [call for step in steps for call in _parse_step(as_object(step.data), messages)]


def reply_hashes(transaction: Reading, content: Content, hashes: bytes) -> list[bytes]:
    """Return the hashes of the replies of stored calls, in order; only the calls are read, and no message."""
    steps, messages = (content.item_hashes(transaction, key) for key in split_hashes(hashes))
    leaves = content.blobs.leaves(transaction, steps)
    with _reporting_damage(hashes):
        return [messages[fields["reply"]] for step in leaves for fields in as_object(step.data)["calls"]]


def count(transaction: Reading, content: Content, hashes: bytes) -> int:
    """Return the number of calls of stored lists, without those that tools made."""
    steps = content.blobs.leaves(transaction, content.item_hashes(transaction, split_hashes(hashes)[0]))
    with _reporting_damage(hashes):
        return sum(not fields.get("in_tool") for step in steps for fields in as_object(step.data)["calls"])


@contextmanager
def _reporting_damage(hashes: bytes) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError) as error:
        row = f"blob {hashes.hex()[: 2 * HASH_BYTES]}"
        raise Corrupt(f"{row} has damaged model calls.", Next("fsck"), row=row) from error


def _parse_step(step: dict[str, Any], messages: Sequence[Leaf]) -> Iterator[RecordedModelCall]:
    for fields in step["calls"]:
        yield RecordedModelCall(
            step["step"],
            [messages[position] for start, length in fields["messages"] for position in range(start, start + length)],
            messages[fields["options"]] if "options" in fields else None,
            messages[fields["reply"]],
            bool(fields.get("in_tool")),
        )
