"""Messages that were turned into leaves already, so that a long conversation is not encoded again at every step."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from agentgit.agents.leaves import MESSAGE_TYPES
from agentgit.store.blobs import Leaf
from agentgit.store.plain import MESSAGE
from agentgit.store.recent import Recent

KNOWN_BYTES = 64 * 2**20

_NUMBERS = {kind: number for number, kind in enumerate(MESSAGE_TYPES.values())}

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
        keys = _keys(messages)
        known = self._known.find(keys)
        fresh: dict[bytes, Leaf] = {}
        found = []
        for key, message in zip(keys, messages, strict=True):
            value = known.get(key)
            if value is None:
                value = self._encode(message)
                # Nothing else: marshal writes an array like the bytes it holds, and JSON has neither.
                if key and value.type == MESSAGE:
                    fresh[key] = value
            found.append(value)
        self._known.add(fresh.items())
        return found


def _keys(messages: Sequence[BaseMessage]) -> list[bytes]:
    try:
        return [
            marshal.dumps((_NUMBERS[type(m)], m.__dict__, m.__pydantic_extra__, m.__pydantic_private__), _FORMAT)
            for m in messages
        ]
    except (KeyError, ValueError):  # one is of another class, or holds an object of the user's
        half = len(messages) // 2
        return [*_keys(messages[:half]), *_keys(messages[half:])] if half else [b""]
