"""Redaction of an export: secrets are replaced everywhere, always alike, and all hashes are computed anew.

The records of the export are written twice. The first time, the values of names that look like those of secrets are
collected; the second time, each of them is replaced wherever it occurs, also inside other texts. So what the model
said, what a tool was called with and what it returned still belong together, and a rerun of the redacted file matches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from hashlib import sha256
from secrets import token_bytes
from typing import Any

import orjson

from agentgit.auth.secret_names import is_secret_name
from agentgit.errors import InvalidInput
from agentgit.store.objects.blobs import RECORD, Leaf, leaf, pack, unpack
from agentgit.store.objects.packing import split_hashes
from agentgit.store.objects.plain_values import (
    CUSTOM_SERDE,
    DELTA,
    MESSAGE_MSGPACK,
    MSGPACK,
    NUMPY,
    READERS,
    unpack_msgpack,
)
from agentgit.store.sql import tables as t
from agentgit.store.threads.graph_rows import hash_state
from agentgit.store.transfer.export import RecordSink, WriteRecord
from agentgit.store.transfer.forms import ListItems
from agentgit.values import from_json

Record = dict[str, Any]

RedactText = Callable[[str], str]
"""A function that receives a text and returns it without its secrets. Equal texts must become equal."""

PLACEHOLDER = "REDACTED-{}"

LONG = 8
"""The number of characters from which a secret is replaced inside words, too; a shorter one only as a whole word."""

SHORTEST = 3
"""The number of characters of the shortest secret that is replaced in other texts."""

_COUNTS = frozenset({"usage", "details", "count", "counts"})
"""The last words of names like `token_usage`, which hold numbers and no secrets."""

_STRUCTURE = frozenset({"human", "ai", "tool", "system", "user", "assistant", "function", "tool_call", "text"})
"""Words that messages are made of, so that they are no secrets."""


class Secrets:
    """The secrets of one export, and what replaces them."""

    def __init__(self, function: RedactText | None) -> None:
        self._function = function
        self._placeholders: dict[str, str] = {}
        self._tool_names: set[str] = set()
        self.changes = 0
        """The number of texts that were replaced."""
        self.text = cache(self._text)
        """Return a text without its secrets."""

    # -- collecting: the secrets are a `Sink` of the records of an export

    def record(self, record: Record) -> None:
        kind = record["record"]
        if kind == t.GRAPH_CHECKPOINT.name:
            self._collect(record["meta"])
        elif kind != t.GRAPH_WRITE.name:
            self._collect(record)
            self._tool_names |= {record["tool_name"]} if kind == t.TOOL_INVOCATION.name else set()

    def items(self, key: bytes, items: ListItems) -> None:
        """A list has no secrets of its own."""

    def value(self, value: Leaf) -> None:
        if value.type in READERS:
            self._collect(READERS[value.type](value.data))
        elif value.type in (MSGPACK, MESSAGE_MSGPACK):
            self._collect(unpack_msgpack(value.data, _content))

    def _collect(self, value: Any) -> None:
        for is_secret, item in _leaves(value, is_secret=False):
            if is_secret and item not in _STRUCTURE:
                self._placeholders.setdefault(item, PLACEHOLDER.format(len(self._placeholders) + 1))

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        """The pattern of all secrets; None if there are none. To read it ends the collection."""
        for name in self._tool_names:
            self._placeholders.pop(name, None)
        for secret, placeholder in list(self._placeholders.items()):
            for is_ascii in (True, False):  # as it stands in JSON inside a text
                self._placeholders.setdefault(json.dumps(secret, ensure_ascii=is_ascii)[1:-1], placeholder)
        known = sorted((one for one in self._placeholders if len(one) >= SHORTEST), key=len, reverse=True)
        patterns = [re.escape(one) if len(one) >= LONG else rf"(?<!\w){re.escape(one)}(?!\w)" for one in known]
        return re.compile("|".join(patterns)) if patterns else None

    # -- replacing

    def _text(self, text: str) -> str:
        pattern = self._pattern
        new = self._placeholders.get(text, text)
        if pattern is not None and new == text:
            new = pattern.sub(lambda match: self._placeholders[match[0]], text)
        if self._function is not None:
            given, new = new, self._function(new)
            if new != given and not _is_valid(new):
                raise InvalidInput(f"The redact function must return a string of valid Unicode, not {new!r}.")
        return new

    def redacted(self, value: Any, *, is_secret: bool = False) -> Any:
        """Return JSON-like data, or what msgpack holds, without its secrets."""
        new: Any
        if isinstance(value, str):
            new = self.text(value)
        elif isinstance(value, Mapping):
            return {
                self.redacted(key): self.redacted(item, is_secret=isinstance(key, str) and _is_secret(key))
                for key, item in value.items()
            }
        elif isinstance(value, list | tuple):
            return type(value)(self.redacted(item) for item in value)
        elif isinstance(value, bytes):
            return self._bytes(value)
        elif is_secret and type(value) in (int, float):
            new = 0
        else:
            return value
        self.changes += new != value
        return new

    def _bytes(self, data: bytes) -> bytes:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data
        return str(self.redacted(text)).encode()

    def leaf(self, value: Leaf) -> Leaf:
        """Return a value without its secrets; the same value if it has none."""
        before = self.changes
        if value.type in READERS:
            data = _dump(self.redacted(READERS[value.type](value.data)), is_ascii=value.type.endswith("+py"))
        elif value.type in (MSGPACK, MESSAGE_MSGPACK):
            data = _write_msgpack(self.redacted(unpack_msgpack(value.data, self._extension)))
        elif value.type in ("bytes", "bytearray"):
            data = self._bytes(value.data)
        elif value.type == CUSTOM_SERDE:
            raise InvalidInput(
                "This session has values that your own serializer wrote. They cannot be redacted. Nothing was exported."
            )
        else:
            return value
        return leaf(value.type, data) if self.changes > before else value

    def _extension(self, code: int, payload: bytes) -> Any:
        """Return an object of LangGraph's serializer without secrets. The names of its type stay."""
        import ormsgpack  # a dependency of LangGraph; needed only for values that are not plain

        if code != NUMPY:
            content = unpack_msgpack(payload, self._extension)
            kept = 0 if code == DELTA else 2
            payload = _write_msgpack([*content[:kept], *map(self.redacted, content[kept:])])
        return ormsgpack.Ext(code, payload)


def _is_valid(text: Any) -> bool:
    return isinstance(text, str) and not any("\ud800" <= character <= "\udfff" for character in text)


def _is_secret(name: str) -> bool:
    """Return whether a name is that of a secret; `token_usage` is not."""
    return is_secret_name(name) and re.split(r"[^a-z]+", name.lower())[-1] not in _COUNTS


def _leaves(value: Any, *, is_secret: bool) -> Iterator[tuple[bool, str]]:
    """Yield each text in JSON-like data, and whether it stands below the name of a secret. JSON in a text is read."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, is_secret=is_secret or (isinstance(key, str) and _is_secret(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, is_secret=is_secret)
    elif isinstance(value, str):
        yield is_secret and bool(value), value
        if value[:1] in ("{", "["):
            try:
                yield from _leaves(from_json(value.encode()), is_secret=False)
            except (ValueError, RecursionError):
                return
    elif is_secret and type(value) in (int, float) and len(str(value)) > SHORTEST:
        yield True, str(value)


def _dump(value: Any, *, is_ascii: bool) -> bytes:
    """Encode JSON as `agentgit.saver.leaf_codec` does, so that a rerun that makes an equal value gives it this hash."""
    return json.dumps(value, separators=(",", ":")).encode() if is_ascii else orjson.dumps(value)


def _write_msgpack(value: Any) -> bytes:
    import ormsgpack  # as in `_extension`

    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def _content(code: int, payload: bytes) -> Any:
    """Return what an object of LangGraph's serializer consists of, without the names of its type."""
    if code == NUMPY:
        return None
    content = unpack_msgpack(payload, _content)
    return content if code == DELTA else content[2:]


REDACTED_FIELDS = {
    t.SESSION.name: ("session_name",),
    t.BRANCH.name: ("name", "meta"),
    t.GRAPH_CHECKPOINT.name: ("meta",),
    t.CHECKPOINT.name: ("name", "description", "data"),
    t.TAG.name: ("name", "description"),
    t.TOOL_INVOCATION.name: ("args", "result", "error_message", "answers"),
    t.OPERATION.name: ("request", "report"),
}
"""The fields of records that may hold secrets."""


class RedactingSink:
    """Writes the records of an export without their secrets."""

    def __init__(self, secrets: Secrets, write: WriteRecord) -> None:
        self._secrets, self._sink = secrets, RecordSink(write)
        self._salt = token_bytes(32)
        self._hashes: dict[bytes, bytes] = {}
        self._written: set[bytes] = set()
        self._lists: dict[bytes, ListItems] = {}
        self._states: dict[bytes, tuple[Any, int]] = {}
        self._state_hashes: dict[str, str] = {}

    def record(self, record: Record) -> None:
        kind = record["record"]
        fields = {name: self._secrets.redacted(record[name]) for name in REDACTED_FIELDS.get(kind, ())}
        change = getattr(self, f"_{kind}", None)
        self._sink.record({**record, **fields, **(change(record, fields) if change is not None else {})})

    def value(self, value: Leaf) -> None:
        """Write a value, unless an equal one was written."""
        if value.type == RECORD:
            new = leaf(RECORD, pack({name: self._hashes[key] for name, key in unpack(value.data).items()}))
        else:
            new = self._secrets.leaf(value)
        self._hashes[value.hash] = new.hash
        if new.hash not in self._written:
            self._written.add(new.hash)
            self._sink.value(new)

    def items(self, key: bytes, items: ListItems) -> None:
        """Write a list, whose hash goes on from that of the list that it continues."""
        new = [self._hashes[item] for item in items.items]
        self._lists[key] = ListItems(items.base, items.keep, new)
        hasher, count = self._states[items.base] if items.base is not None else (sha256(b"list\0"), 0)
        if items.keep != count:
            hasher, count = sha256(b"list\0" + b"".join(self._first(items.base, items.keep))), items.keep
        hasher = hasher.copy()
        hasher.update(b"".join(new))
        self._states[key] = hasher, count + len(new)
        self._hashes[key] = hasher.digest()
        if hasher.digest() not in self._written:
            self._written.add(hasher.digest())
            base = self._hashes[items.base] if items.base is not None else None
            self._sink.items(hasher.digest(), ListItems(base, items.keep, new))

    def _first(self, key: bytes | None, count: int) -> list[bytes]:
        parts: list[list[bytes]] = []
        while key is not None and count:
            base, keep, items = self._lists[key]
            parts.append(items[: max(0, count - keep)])
            key, count = base, min(count, keep)
        return [item for part in reversed(parts) for item in part]

    def _mapped(self, hashes: str) -> str:
        return b"".join(self._hashes[key] for key in split_hashes(bytes.fromhex(hashes))).hex()

    def _graph_checkpoint(self, record: Record, _: Record) -> Record:
        channels = {name: self._hashes[key] for name, key in unpack(bytes.fromhex(record["channels"])).items()}
        self._state_hashes[record["state_hash"]] = hash_state(channels).hex()
        return {"channels": pack(channels).hex(), "state_hash": self._state_hashes[record["state_hash"]]}

    def _graph_write(self, record: Record, _: Record) -> Record:
        return {"value": self._mapped(record["value"])}

    def _checkpoint(self, record: Record, _: Record) -> Record:
        pending = record["pending"] and [
            [[ns, id, [[*write[:-1], self._mapped(write[-1])] for write in writes]] for ns, id, writes in one]
            for one in record["pending"]
        ]
        return {"pending": pending, "state_hash": self._state_hashes.get(record["state_hash"], record["state_hash"])}

    def _tool_invocation(self, record: Record, fields: Record) -> Record:
        if fields["args"] == record["args"]:
            return {}
        # Hashes from which short arguments could be guessed.
        key = sha256(self._salt + record["idempotency_key"].encode()).hexdigest()[:32]
        return {"identity": None, "idempotency_key": key}
