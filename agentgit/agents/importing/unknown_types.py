"""Reading the values of a database that somebody else wrote, without building or losing what is not known."""

from __future__ import annotations

from typing import Any

import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_NUMPY_ARRAY, JsonPlusSerializer

from agentgit.errors import InvalidInput
from agentgit.langgraph_internals import SAFE_MSGPACK_TYPES
from agentgit.saver.leaf_codec import type_names
from agentgit.store.objects.lru import Recent
from agentgit.store.objects.plain_values import MSGPACK

KNOWN_MESSAGES = 10_000
"""The number of messages that are remembered."""

READABLE = ("null", "bytes", "bytearray", "json", MSGPACK)


class KeptTypes(SerializerProtocol):
    """LangGraph's serializer, which builds only messages and other types that are known to be harmless.

    What is of any other type (the dataclasses, models and enums of the program that wrote it) stays the bytes that it
    is, as an `ormsgpack.Ext`. Written again it is the same bytes, so that the program finds its own objects later.
    Nothing in the database that is read decides what is imported or called, but for values in LangGraph's older form,
    `json`: these name classes of LangChain, which are built as LangGraph builds them.

    Example:
        >>> serde = KeptTypes()
        >>> serde.loads_typed(serde.dumps_typed({"seats": {7}}))
        {'seats': {7}}
    """

    def __init__(self) -> None:
        self._strict = JsonPlusSerializer(allowed_msgpack_modules=None)
        # A thread has each of its messages in every later graph checkpoint; building one again takes 50 µs.
        self._messages: Recent[bytes, BaseMessage] = Recent(KNOWN_MESSAGES, lambda _: 1)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Write a value."""
        return self._strict.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Read a value.

        Raises:
            InvalidInput: It was written with a serializer that is not LangGraph's own.
        """
        kind, body = data
        if kind not in READABLE:
            raise InvalidInput(
                f"It has values in the format {kind!r}, which only the program's own serializer can read. Import with "
                "the program's own saver: repo.import_langgraph(saver)."
            )
        if kind != MSGPACK:
            return self._strict.loads_typed(data)
        return ormsgpack.unpackb(body, ext_hook=self._part, option=ormsgpack.OPT_NON_STR_KEYS)

    def _part(self, code: int, payload: bytes) -> Any:
        key = bytes((code % 256,)) + payload
        known = self._messages.get(key)
        if known is not None:
            return known
        part = ormsgpack.Ext(code, payload)
        packed = ormsgpack.packb(part)
        if code == EXT_NUMPY_ARRAY or not type_names(packed) <= SAFE_MSGPACK_TYPES:
            return part
        value = self._strict.loads_typed((MSGPACK, packed))
        if isinstance(value, BaseMessage):
            self._messages.add([(key, value)])
        return value
