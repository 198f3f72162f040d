"""Encoding of LangGraph's values as stored content.

Plain values are stored as JSON and messages in LangChain's stored form. Plain means exactly `str`, `int`, `float`,
`bool`, `None`, `list` and `dict` with `str` keys, which JSON returns unchanged. Everything else goes through the
serializer (`dumps_typed`): `StrictSerializer`, or the user's own.

A list is stored item by item, with small plain items in runs of about a kilobyte, so appending costs only what is
appended.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter, eq, or_
from typing import Any, NamedTuple

import orjson
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agentgit.errors import Corrupt, InvalidInput
from agentgit.next_steps import Next
from agentgit.saver.leaf_codec import (
    ALONE_BYTES,
    MESSAGE_TYPES,
    RUN_BYTES,
    assemble_messages,
    encode_json,
    has_exact_fields,
    json_leaf,
    message_leaf,
    plain_leaf,
    rebuild_message,
    rebuild_messages,
    run_leaf,
    stored_form,
)
from agentgit.saver.serializer import StrictSerializer
from agentgit.store.objects.blobs import Leaf, leaf, trim
from agentgit.store.objects.content import Body, Encoded, Part
from agentgit.store.objects.lru import LRUCache
from agentgit.store.objects.plain_values import CUSTOM_SERDE, MESSAGE, MESSAGE_MSGPACK, MESSAGES, MSGPACK, READERS, RUNS

MAX_CACHE_BYTES = 32 * 2**20


class Codec:
    """Encodes values as stored content, and decodes them."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        self._message_cache = MessageCache(self.encode_leaf)

    def encode(self, value: Any) -> Encoded:
        value_type = type(value)
        if value_type is list:
            return Encoded(self._encode_part(value), len(value) if _are_all_messages(value) else None)
        if value_type is dict and _has_conversation(value):
            parts: dict[str, Part] = {name: self._encode_part(part) for name, part in value.items()}
            messages = value.get("messages")
            return Encoded(parts, len(messages) if type(messages) is list and _are_all_messages(messages) else None)
        return Encoded(self.encode_leaf(value))

    def _encode_part(self, value: Any) -> Part:
        if type(value) is not list:
            return self.encode_leaf(value)
        return self._message_cache.leaves(value) if _are_all_messages(value) else list(self._encode_items(value))

    def encode_messages(self, messages: Sequence[BaseMessage]) -> list[Leaf]:
        return self._message_cache.leaves(messages)

    def encode_leaf(self, value: Any) -> Leaf:
        if not isinstance(value, BaseMessage):
            return plain_leaf(value) or leaf(*_dump_with_serde(self.serde, value))
        stored = stored_form(value)
        if stored is None:
            return leaf(*_dump_with_serde(self.serde, value))
        return message_leaf(stored) or self._encode_packed(stored, value)

    def _encode_packed(self, stored: dict[str, Any], message: BaseMessage) -> Leaf:
        # Not the message itself: the serializer flattens a model with its parts, and their types would be lost.
        kind, data = _dump_with_serde(self.serde, stored)
        return leaf(MESSAGE_MSGPACK, data) if kind == MSGPACK else leaf(*_dump_with_serde(self.serde, message))

    def _encode_items(self, values: list[Any]) -> Iterator[Leaf]:
        """Encode the items of a list as leaves. Where a run ends depends only on its items and on the next one."""
        run: list[bytes] = []
        run_bytes, is_orjson_readable = 0, True
        for value in values:
            encoded = None if isinstance(value, BaseMessage) else encode_json(value)
            is_small = encoded is not None and len(encoded[0]) < ALONE_BYTES
            if run and (not is_small or run_bytes >= RUN_BYTES):
                yield run_leaf(run, is_orjson_readable)
                run, run_bytes, is_orjson_readable = [], 0, True
            if encoded is None:
                yield self.encode_leaf(value)
            elif not is_small:
                yield json_leaf(*encoded)
            else:
                run.append(encoded[0])
                run_bytes, is_orjson_readable = run_bytes + len(encoded[0]), is_orjson_readable and encoded[1]
        if run:
            yield run_leaf(run, is_orjson_readable)

    def decode(self, body: Body) -> Any:
        if isinstance(body, dict):
            return {name: self.decode(part) for name, part in body.items()}
        if isinstance(body, Leaf):
            return self._decode_leaf(body)
        if all(item.type == MESSAGE for item in body):
            return self._message_cache.messages(body)
        items: list[Any] = []
        for item in body:
            items.extend(self._decode_leaf(item)) if item.type in RUNS else items.append(self._decode_leaf(item))
        return items

    def _decode_leaf(self, stored: Leaf) -> Any:
        reader = READERS.get(stored.type)
        value = reader(stored.data) if reader is not None else self._load_with_serde(stored)
        return rebuild_message(value) if stored.type in MESSAGES else value

    def _load_with_serde(self, stored: Leaf) -> Any:
        if stored.type == CUSTOM_SERDE:
            raise InvalidInput("A value was written with another serializer.", Next("use_serializer"))
        kind = MSGPACK if stored.type == MESSAGE_MSGPACK else stored.type
        try:
            return self.serde.loads_typed((kind, stored.data))
        except (ValueError, NotImplementedError) as error:
            row = f"blob {stored.hash.hex()}"
            raise Corrupt(f"{row} of type {kind!r} cannot be read ({error}).", Next("fsck"), row=row) from error


class SealedCodec(Codec):
    """Encodes values with the user's serializer, and remembers their leaves, so that equal items keep their hashes."""

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__(serde)
        self._plain_codec = Codec(StrictSerializer())
        self._sealed_by_hash: LRUCache[bytes, Leaf] = LRUCache(MAX_CACHE_BYTES, lambda sealed: len(sealed.data) + 256)

    def _encode_part(self, value: Any) -> Part:
        return list(map(self.encode_leaf, value)) if type(value) is list else self.encode_leaf(value)

    def encode(self, value: Any) -> Encoded:
        if type(value) is list and not any(isinstance(item, (list, dict, BaseMessage)) for item in value):
            return Encoded(self.encode_leaf(value))
        return super().encode(value)

    def encode_messages(self, messages: Sequence[BaseMessage]) -> list[Leaf]:
        return list(map(self.encode_leaf, messages))

    def encode_leaf(self, value: Any) -> Leaf:
        plain_hash = self._plain_hash(value)
        sealed = self._sealed_by_hash.get(plain_hash) if plain_hash is not None else None
        if sealed is None:
            kind, data = _dump_with_serde(self.serde, value)
            sealed = leaf(CUSTOM_SERDE, kind.encode() + b"\0" + data)
            self._cache_sealed(plain_hash, sealed)
        return sealed

    def _decode_leaf(self, stored: Leaf) -> Any:
        if stored.type != CUSTOM_SERDE:
            return self._plain_codec._decode_leaf(stored)  # written before this serializer came into use
        kind, _, data = stored.data.partition(b"\0")
        if isinstance(self.serde, EncryptedSerializer) and b"+" not in kind:
            # The serializer would pass unencrypted bytes on to the one it wraps, which calls what they name: an attack.
            raise Corrupt(
                "A value is not sealed, although this database's serializer seals everything. Do not continue: restore "
                "the session from a backup, or export it again.",
                row=f"blob {stored.hash.hex()}",
            )
        value = self.serde.loads_typed((kind.decode(), data))
        self._cache_sealed(self._plain_hash(value), stored)
        return value

    def _plain_hash(self, value: Any) -> bytes | None:
        try:
            return self._plain_codec.encode_leaf(value).hash
        except InvalidInput:
            return None

    def _cache_sealed(self, plain_hash: bytes | None, sealed: Leaf) -> None:
        if plain_hash is not None:
            self._sealed_by_hash.add([(plain_hash, sealed)])


def make_codec(serde: SerializerProtocol) -> Codec:
    return Codec(serde) if type(serde) in (JsonPlusSerializer, StrictSerializer) else SealedCodec(serde)


def _are_all_messages(values: list[Any]) -> bool:
    return all(issubclass(kind, BaseMessage) for kind in set(map(type, values)))


def _has_conversation(value: dict[Any, Any]) -> bool:
    return all(type(name) is str for name in value) and any(
        type(part) is list and part and _are_all_messages(part) for part in value.values()
    )


def _dump_with_serde(serde: SerializerProtocol, value: Any) -> tuple[str, bytes]:
    try:
        kind, data = serde.dumps_typed(value)
        return kind, bytes(data)
    except (TypeError, ValueError, RecursionError) as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InvalidInput(
            f"A value of type {kind} cannot be stored in a checkpoint ({error}). Keep it out of the state, or pass "
            "SQLModelSaver(…, serde=…) a serializer that supports it."
        ) from error


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
        nested = {name: value for name, value in fields.items() if type(value) in (dict, list)}
        nested_json = trim(orjson.dumps(nested))
        # Comparing the fields is enough for strings and constants, but not for numbers: 1 equals True and 1.0.
        is_comparable = not any(nested.values()) and all(
            name in nested or value is None or type(value) in (str, bool) for name, value in fields.items()
        )
        return cls(leaf, kind, fields | orjson.loads(nested_json), nested_json, None if is_comparable else dump())


class MessageCache:
    """Maps messages to leaves and back, by id or text; messages are edited in place, so all of an entry is compared."""

    def __init__(self, encode: Callable[[BaseMessage], Leaf]) -> None:
        self._encode = encode
        self._by_key: LRUCache[str, _CachedMessage] = LRUCache(MAX_CACHE_BYTES, _estimate_size)
        self._by_leaf: LRUCache[bytes, _CachedMessage] = LRUCache(MAX_CACHE_BYTES, _estimate_size)

    def leaves(self, messages: Sequence[BaseMessage]) -> list[Leaf]:
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
        for one, stored in zip(leaves, _parse_all([one.data for one in leaves]), strict=True):
            kind, data = MESSAGE_TYPES[stored["type"]], stored["data"]
            if has_exact_fields(kind, data):
                entries[one.hash] = _CachedMessage.of(one, kind, data, partial(_marshal_content, (data, {}, None)))
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
