"""A cache of messages and their leaves, so that a long conversation is not encoded and parsed again at every step."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, eq, or_
from typing import Any, NamedTuple

import orjson
from langchain_core.messages import BaseMessage

from agentgit.saver.leaf_codec import MESSAGE_TYPES, assemble_messages, has_exact_fields, rebuild_messages
from agentgit.store.objects.blobs import Leaf, trim
from agentgit.store.objects.lru import LRUCache
from agentgit.store.objects.plain_values import MESSAGE

MAX_CACHE_BYTES = 64 * 2**20

_MESSAGE_CLASSES = frozenset(MESSAGE_TYPES.values())
_get_fields = attrgetter("__dict__")
_get_extra = attrgetter("__pydantic_extra__")
_get_private = attrgetter("__pydantic_private__")
_get_content = attrgetter("__dict__", "__pydantic_extra__", "__pydantic_private__")
"""Everything that determines the leaf of a message, if the message is of one of the classes in `_MESSAGE_CLASSES`."""

_MARSHAL_FORMAT = 2
"""The last format of marshal whose bytes do not depend on other references to the values."""


class _CachedMessage(NamedTuple):
    """A message and its leaf."""

    leaf: Leaf
    kind: type[BaseMessage]
    fields: dict[str, Any]
    nested: bytes
    dump: bytes | None

    @classmethod
    def of(
        cls, leaf: Leaf, kind: type[BaseMessage], fields: dict[str, Any], dump: Callable[[], bytes]
    ) -> _CachedMessage:
        """Create the entry for a message."""
        nested = {name: value for name, value in fields.items() if type(value) in (dict, list)}
        nested_json = trim(orjson.dumps(nested))
        # Comparing the fields is enough for strings and constants, but not for numbers: 1 equals True and 1.0.
        is_comparable = not any(nested.values()) and all(
            name in nested or value is None or type(value) in (str, bool) for name, value in fields.items()
        )
        return cls(leaf, kind, fields | orjson.loads(nested_json), nested_json, None if is_comparable else dump())


class MessageCache:
    """A cache that maps messages to leaves, and leaves to messages.

    A message is looked up by its id, or by its text if it has no id, and then compared with the entry in full, because
    it may have been edited in place. A message that is not plain JSON is encoded every time.
    """

    def __init__(self, encode: Callable[[BaseMessage], Leaf]) -> None:
        self._encode = encode
        self._by_key: LRUCache[str, _CachedMessage] = LRUCache(MAX_CACHE_BYTES, _estimate_size)
        self._by_leaf: LRUCache[bytes, _CachedMessage] = LRUCache(MAX_CACHE_BYTES, _estimate_size)

    def leaves(self, messages: Sequence[BaseMessage]) -> list[Leaf]:
        """Encode messages as leaves."""
        if not _MESSAGE_CLASSES.issuperset(map(type, messages)):
            return list(map(self._encode, messages))
        message_fields = list(map(_get_fields, messages))
        entries = self._by_key.lookup(_cache_keys(message_fields))
        if any(map(_get_extra, messages)) or any(map(_get_private, messages)):
            are_equal = [False] * len(message_fields)
        else:
            are_equal = list(map(eq, message_fields, [entry and entry.fields for entry in entries]))
        if all(are_equal) and not any(entry and entry.dump for entry in entries):
            return [entry.leaf for entry in entries if entry is not None]
        return [
            entry.leaf if entry and is_equal and not entry.dump else self._encode_message(message, entry)
            for message, entry, is_equal in zip(messages, entries, are_equal, strict=True)
        ]

    def _encode_message(self, message: BaseMessage, entry: _CachedMessage | None) -> Leaf:
        try:
            dump = _marshal_content(_get_content(message))
        except ValueError:  # the message contains an object that marshal does not support
            return self._encode(message)
        if entry is not None and entry.dump == dump:
            return entry.leaf
        leaf = self._encode(message)
        # Only plain JSON is cached: marshal writes an array like its bytes, and JSON has neither.
        if leaf.type == MESSAGE:
            new_entry = _CachedMessage.of(leaf, type(message), message.__dict__, lambda: dump)
            self._by_key.add(zip(_cache_keys([message.__dict__]), [new_entry], strict=True))
            if not message.__pydantic_extra__:
                self._by_leaf.add([(leaf.hash, new_entry)])
        return leaf

    def messages(self, leaves: Sequence[Leaf]) -> list[BaseMessage]:
        """Decode leaves, all of them plain JSON, into messages."""
        entries = self._by_leaf.lookup([leaf.hash for leaf in leaves])
        if not all(entries):
            parsed = self._parse_leaves([leaf for leaf, entry in zip(leaves, entries, strict=True) if entry is None])
            entries = [entry or parsed.get(leaf.hash) for leaf, entry in zip(leaves, entries, strict=True)]
        cached = [entry for entry in entries if entry is not None]
        if len(cached) < len(leaves):
            return rebuild_messages(_parse_all([leaf.data for leaf in leaves]))
        nested = _parse_all([entry.nested for entry in cached])
        return assemble_messages(
            [entry.kind for entry in cached], list(map(or_, [entry.fields for entry in cached], nested))
        )

    def _parse_leaves(self, leaves: Sequence[Leaf]) -> dict[bytes, _CachedMessage]:
        """Parse leaves, and cache those with exactly the fields that this release of LangChain uses."""
        entries: dict[bytes, _CachedMessage] = {}
        for leaf, stored in zip(leaves, _parse_all([leaf.data for leaf in leaves]), strict=True):
            kind, data = MESSAGE_TYPES[stored["type"]], stored["data"]
            if has_exact_fields(kind, data):
                entries[leaf.hash] = _CachedMessage.of(leaf, kind, data, partial(_marshal_content, (data, {}, None)))
        self._by_leaf.add(entries.items())
        self._by_key.add(zip(_cache_keys([entry.fields for entry in entries.values()]), entries.values(), strict=True))
        return entries


def _marshal_content(content: Any) -> bytes:
    return marshal.dumps(content, _MARSHAL_FORMAT)


def _cache_keys(message_fields: Sequence[dict[str, Any]]) -> list[str]:
    """Return the cache key of each message: its id, or its text if it has no id."""
    keys = [fields.get("id") or fields.get("content") for fields in message_fields]
    return [key if type(key) is str else "" for key in keys]


def _parse_all(parts: Sequence[bytes]) -> list[Any]:
    values: list[Any] = orjson.loads(b"[%b]" % b",".join(parts))
    return values


def _estimate_size(entry: _CachedMessage) -> int:
    return 2 * len(entry.leaf.data) + 1024
