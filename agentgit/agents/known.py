"""Messages that were turned into leaves already, so that a long conversation is not encoded again at every step."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import cast

from langchain_core.messages import BaseMessage

from agentgit.agents.leaves import MESSAGE_TYPES
from agentgit.store.blobs import Leaf
from agentgit.store.plain import MESSAGE
from agentgit.store.recent import Recent

KNOWN_BYTES = 64 * 2**20

_EXACT = frozenset(MESSAGE_TYPES.values())
_parts = attrgetter("__dict__", "__pydantic_extra__", "__pydantic_private__")
"""All that a leaf is made of, if the message is of one of these classes."""

_FORMAT = 2
"""Marshal's last format in which equal bytes mean equal values whatever else refers to them."""


class KnownMessages:
    """Which message became which leaf, by all that the message holds: one that was edited in place is another one.

    The key is Python's own dump of the message's fields, a tenth of the work of encoding it. It tells apart whatever
    JSON tells apart, and `1` from `True`; what it cannot dump, or what is not plain JSON, is encoded every time.

    Args:
        encode: turns a message into a leaf.
    """

    def __init__(self, encode: Callable[[BaseMessage], Leaf]) -> None:
        self._encode = encode
        self._known: Recent[Leaf] = Recent(KNOWN_BYTES, lambda value: 2 * len(value.data) + 512)

    def leaves(self, messages: Sequence[BaseMessage]) -> list[Leaf]:
        """Turn messages into leaves.

        Raises:
            InvalidInput: one cannot be stored; the text says what it is.
        """
        if not _EXACT.issuperset(map(type, messages)):
            return list(map(self._encode, messages))
        try:
            keys = list(map(marshal.dumps, map(_parts, messages), repeat(_FORMAT)))
        except ValueError:  # one holds an object of the user's
            return [self._leaf(message) for message in messages]
        found = self._known.lookup(keys)
        if None in found:
            found = [
                value or self._fresh(key, message) for key, message, value in zip(keys, messages, found, strict=True)
            ]
        return cast("list[Leaf]", found)

    def _leaf(self, message: BaseMessage) -> Leaf:
        try:
            key = marshal.dumps(_parts(message), _FORMAT)
        except ValueError:
            return self._encode(message)
        return self._known.get(key) or self._fresh(key, message)

    def _fresh(self, key: bytes, message: BaseMessage) -> Leaf:
        value = self._encode(message)
        # Nothing else: marshal writes an array like the bytes it holds, and JSON has neither.
        if value.type == MESSAGE:
            self._known.add([(key, value)])
        return value
