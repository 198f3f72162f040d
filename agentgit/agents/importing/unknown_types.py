"""A serializer for values that another program wrote: unknown types are neither instantiated nor lost."""

from __future__ import annotations

from typing import Any

import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_NUMPY_ARRAY, JsonPlusSerializer

from agentgit.errors import InvalidInput
from agentgit.langgraph_internals import SAFE_MSGPACK_TYPES
from agentgit.saver.leaf_codec import type_names
from agentgit.store.objects.lru import LRUCache
from agentgit.store.objects.plain_values import MSGPACK

CACHED_MESSAGES = 10_000
"""The number of messages in the cache."""

READABLE_FORMATS = ("null", "bytes", "bytearray", "json", MSGPACK)


class UnknownTypeSerializer(SerializerProtocol):
    """LangGraph's serializer, restricted to messages and other types that are known to be safe.

    A value of any other type, such as a dataclass, model or enum of the program that wrote it, stays an
    `ormsgpack.Ext` with its bytes. Serialized again it has the same bytes, so that the program can read its own
    objects later. The data in the source cannot choose what is imported or called. The exception are values in
    LangGraph's older format `json`: they name LangChain classes, which are instantiated as LangGraph does.

    Example:
        >>> serde = UnknownTypeSerializer()
        >>> serde.loads_typed(serde.dumps_typed({"seats": {7}}))
        {'seats': {7}}
    """

    def __init__(self) -> None:
        self._strict = JsonPlusSerializer(allowed_msgpack_modules=None)
        # Every later graph checkpoint of a thread repeats its messages; deserializing one again takes 50 µs.
        self._messages: LRUCache[bytes, BaseMessage] = LRUCache(CACHED_MESSAGES)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serialize a value."""
        return self._strict.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Deserialize a value."""
        kind, body = data
        if kind not in READABLE_FORMATS:
            raise InvalidInput(
                f"It has values in the format {kind!r}, which only the program's own serializer can read. Import it "
                "in that program, with its own saver."
            )
        if kind != MSGPACK:
            return self._strict.loads_typed(data)
        return ormsgpack.unpackb(body, ext_hook=self._unpack_ext, option=ormsgpack.OPT_NON_STR_KEYS)

    def _unpack_ext(self, code: int, payload: bytes) -> Any:
        key = bytes((code % 256,)) + payload
        cached = self._messages.get(key)
        if cached is not None:
            return cached
        ext = ormsgpack.Ext(code, payload)
        packed = ormsgpack.packb(ext)
        if code == EXT_NUMPY_ARRAY or not type_names(packed) <= SAFE_MSGPACK_TYPES:
            return ext
        value = self._strict.loads_typed((MSGPACK, packed))
        if isinstance(value, BaseMessage):
            self._messages.add([(key, value)])
        return value
