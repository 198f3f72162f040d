"""Values on their way out of an export: each is put together, held against its hash, and read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agentgit.store.objects.blobs import RECORD, Leaf, leaf, list_hash, unpack
from agentgit.store.objects.packing import CHUNK
from agentgit.store.objects.plain_values import (
    MESSAGE_MSGPACK,
    MESSAGES,
    MSGPACK,
    READERS,
    RUNS,
    SEALED,
    show,
    show_message,
    structure,
)
from agentgit.store.sql.tables import LIST
from agentgit.store.transfer.export_values import LARGEST, RecentLists
from agentgit.store.transfer.file_trees import unbased
from agentgit.store.transfer.lines import PART_BYTES
from agentgit.store.transfer.messages import readable, require_flat, stored

TYPES = frozenset({*READERS, MSGPACK, MESSAGE_MSGPACK, SEALED, RECORD, "null", "bytes", "bytearray"})
"""The types of values that agentgit writes; what is of another is not taken: a pickle, for example."""


PICKLE = b"pickle"
"""The name that LangGraph's serializer gives a pickle, if somebody allows it."""


class ListItems(NamedTuple):
    """A list that was read, with all of its items, and the list that it leans on."""

    key: bytes
    items: tuple[bytes, ...]
    base: bytes | None


class ValueReader:
    """Puts the values of an export together; one that comes in parts takes several records."""

    def __init__(self) -> None:
        self._recent = RecentLists()
        self._open: dict[str, Any] | None = None
        self._parts: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """True while parts of a value are to come."""
        return self._open is not None

    def value(self, fields: Mapping[str, Any]) -> Leaf | None:
        """Read a value; None if its parts are still to come.

        Raises:
            ValueError: It is none, or does not match its hash.
        """
        if sum(fields[name] is not None for name in ("text", "data", "parts")) != 1:
            raise ValueError("has not one of text, data, parts")
        if fields["parts"] is not None:
            if not 1 < fields["parts"] <= LARGEST // PART_BYTES:
                raise ValueError(f"cannot have {fields['parts']} parts")
            self._open = dict(fields)
            return None
        data = fields["text"].encode() if fields["text"] is not None else unbased(fields["data"])
        return _leaf(fields, data)

    def part(self, fields: Mapping[str, Any]) -> Leaf | None:
        """Read a part; give the value if it is the last one."""
        assert self._open is not None  # noqa: S101  # whoever calls has looked
        data = unbased(fields["data"])
        if len(data) > PART_BYTES:
            raise ValueError(f"has more than {PART_BYTES} bytes")
        self._parts.append(data)
        if len(self._parts) < self._open["parts"]:
            return None
        found = _leaf(self._open, b"".join(self._parts))
        self._open, self._parts = None, []
        return found

    def list(self, fields: Mapping[str, Any]) -> ListItems:
        """Read a list.

        Raises:
            ValueError: It leans on one that did not come shortly before, or does not match its hash.
        """
        base = self._recent.get(fields["base"]) if fields["base"] is not None else ()
        if base is None or fields["keep"] > len(base):
            raise ValueError("leans on a list that did not come shortly before it")
        items = (*base[: fields["keep"]], *fields["items"])
        if list_hash(items) != fields["id"]:
            raise ValueError("does not match its hash")
        self._recent.add(fields["id"], items)
        return ListItems(fields["id"], items, fields["base"])


def _leaf(fields: Mapping[str, Any], data: bytes) -> Leaf:
    if fields["type"] in (LIST, CHUNK) or fields["type"] not in TYPES:
        raise ValueError(f"has type {fields['type']!r}, which agentgit does not write")
    if fields["type"] == SEALED and data.partition(b"\0")[0] == PICKLE:
        raise ValueError("is a pickle, which may do anything where it is read, and is not carried")
    found = leaf(fields["type"], data)
    if found.hash != fields["id"]:
        raise ValueError("does not match its hash")
    return found


def require_readable(value: Leaf) -> None:
    """Read a value as people are shown it; that builds no objects.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        if value.type == RECORD:
            if not all(type(name) is str for name in unpack(value.data)):
                raise ValueError("has a name that is no text")
            return
        shown = show(value)
        if value.type in READERS:
            require_flat(shown)
        if value.type in RUNS and type(shown) is not list:
            raise ValueError("is no list")
        if value.type in MESSAGES:
            stored(structure(value.data) if value.type == MESSAGE_MSGPACK else shown)
    except Exception as error:  # its bytes may lead to anything
        raise ValueError(f"of type {value.type} cannot be read ({_why(error)})") from error


def is_message(value: Leaf) -> bool:
    """Return whether a value that was read can be an item of a conversation."""
    if value.type in MESSAGES or value.type == SEALED:
        return True
    try:
        return value.type == MSGPACK and bool(readable(show_message(value)))
    except (ValueError, TypeError, LookupError, AttributeError):  # its bytes may be of anything
        return False


def _why(error: Exception) -> str:
    return str(error) if type(error) is ValueError else type(error).__name__
