"""A cache of messages and their leaves, so that a long conversation is not encoded and parsed again at every step."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, eq, or_
from typing import Any, NamedTuple

import orjson
from langchain_core.messages import BaseMessage

from agentgit.saver.leaf_codec import MESSAGE_TYPES, assemble, fits, rebuild_all
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.lru import LRUCache
from agentgit.store.objects.plain_values import MESSAGE

KNOWN_BYTES = 64 * 2**20

_EXACT = frozenset(MESSAGE_TYPES.values())
_fields = attrgetter("__dict__")
_extra = attrgetter("__pydantic_extra__")
_private = attrgetter("__pydantic_private__")
_all = attrgetter("__dict__", "__pydantic_extra__", "__pydantic_private__")
"""Everything that determines the leaf of a message, if the message is of one of the classes in `_EXACT`."""

_FORMAT = 2
"""The last format of marshal whose bytes do not depend on other references to the values."""


class _Known(NamedTuple):
    """A message and its leaf.

    Args:
        leaf: The stored leaf.
        kind: The class of the message.
        fields: The fields of the message; nothing else refers to them.
        nested: The fields that are lists or dicts, as JSON, so that each message gets its own copies.
        dump: The marshal dump of everything in the message; None if comparing the fields is enough, which is faster.
    """

    leaf: Leaf
    kind: type[BaseMessage]
    fields: dict[str, Any]
    nested: bytes
    dump: bytes | None

    @classmethod
    def of(cls, leaf: Leaf, kind: type[BaseMessage], fields: dict[str, Any], dump: Callable[[], bytes]) -> _Known:
        """Create the entry for a message.

        Args:
            leaf: The stored leaf, which is plain JSON.
            kind: The class of the message.
            fields: The fields of the message; they are copied.
            dump: A function that returns the marshal dump of everything in the message.
        """
        nested = {name: value for name, value in fields.items() if type(value) in (dict, list)}
        written = orjson.dumps(nested)
        # Comparing the fields is enough for strings and constants, but not for numbers: 1 equals True and 1.0.
        easy = not any(nested.values()) and all(
            name in nested or value is None or type(value) in (str, bool) for name, value in fields.items()
        )
        return cls(leaf, kind, fields | orjson.loads(written), written, None if easy else dump())


class MessageCache:
    """A cache that maps messages to leaves, and leaves to messages.

    A message is looked up by its id, or by its text if it has no id, and then compared with the entry in full, because
    it may have been edited in place. A message that is not plain JSON is encoded every time.

    Args:
        encode: A function that encodes a message as a leaf.
    """

    def __init__(self, encode: Callable[[BaseMessage], Leaf]) -> None:
        self._encode = encode
        self._by_name: LRUCache[str, _Known] = LRUCache(KNOWN_BYTES, _weight)
        self._by_leaf: LRUCache[bytes, _Known] = LRUCache(KNOWN_BYTES, _weight)

    def leaves(self, messages: Sequence[BaseMessage]) -> list[Leaf]:
        """Encode messages as leaves.

        Raises:
            InvalidInput: A message cannot be stored; the error names its type.
        """
        if not _EXACT.issuperset(map(type, messages)):
            return list(map(self._encode, messages))
        held = list(map(_fields, messages))
        found = self._by_name.lookup(_names(held))
        if any(map(_extra, messages)) or any(map(_private, messages)):
            same = [False] * len(held)
        else:
            same = list(map(eq, held, [known and known.fields for known in found]))
        if all(same) and not any(known and known.dump for known in found):
            return [known.leaf for known in found if known is not None]
        return [
            known.leaf if known and alike and not known.dump else self._leaf(message, known)
            for message, known, alike in zip(messages, found, same, strict=True)
        ]

    def _leaf(self, message: BaseMessage, known: _Known | None) -> Leaf:
        try:
            dump = _dump(_all(message))
        except ValueError:  # the message contains an object that marshal does not support
            return self._encode(message)
        if known is not None and known.dump == dump:
            return known.leaf
        value = self._encode(message)
        # Only plain JSON is cached: marshal writes an array like its bytes, and JSON has neither.
        if value.type == MESSAGE:
            fresh = _Known.of(value, type(message), message.__dict__, lambda: dump)
            self._by_name.add(zip(_names([message.__dict__]), [fresh], strict=True))
            if not message.__pydantic_extra__:
                self._by_leaf.add([(value.hash, fresh)])
        return value

    def messages(self, leaves: Sequence[Leaf]) -> list[BaseMessage]:
        """Decode leaves, all of them plain JSON, into messages."""
        found = self._by_leaf.lookup([leaf.hash for leaf in leaves])
        if not all(found):
            read = self._read([leaf for leaf, known in zip(leaves, found, strict=True) if known is None])
            found = [known or read.get(leaf.hash) for leaf, known in zip(leaves, found, strict=True)]
        known_all = [known for known in found if known is not None]
        if len(known_all) < len(leaves):
            return rebuild_all(_loads([leaf.data for leaf in leaves]))
        nested = _loads([known.nested for known in known_all])
        return assemble(
            [known.kind for known in known_all], list(map(or_, [known.fields for known in known_all], nested))
        )

    def _read(self, leaves: Sequence[Leaf]) -> dict[bytes, _Known]:
        """Parse leaves, and cache those with exactly the fields that this release of LangChain uses."""
        read: dict[bytes, _Known] = {}
        for leaf, stored in zip(leaves, _loads([leaf.data for leaf in leaves]), strict=True):
            kind, data = MESSAGE_TYPES[stored["type"]], stored["data"]
            if fits(kind, data):
                read[leaf.hash] = _Known.of(leaf, kind, data, partial(_dump, (data, {}, None)))
        self._by_leaf.add(read.items())
        self._by_name.add(zip(_names([known.fields for known in read.values()]), read.values(), strict=True))
        return read


def _dump(parts: Any) -> bytes:
    return marshal.dumps(parts, _FORMAT)


def _names(held: Sequence[dict[str, Any]]) -> list[str]:
    """Return the cache key of each message: its id, or its text if it has no id."""
    names = [fields.get("id") or fields.get("content") for fields in held]
    return [name if type(name) is str else "" for name in names]


def _loads(parts: Sequence[bytes]) -> list[Any]:
    found: list[Any] = orjson.loads(b"[%b]" % b",".join(parts))
    return found


def _weight(known: _Known) -> int:
    return 2 * len(known.leaf.data) + 1024
