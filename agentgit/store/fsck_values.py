"""Checking the stored values: what they are made of is there, and each has the hash that it is stored under."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from sqlalchemy import Connection, case, func, or_, select

from agentgit.errors import AgentGitError
from agentgit.store.blobs import BLOB, FULL, LIST, RECORD, link_of, unpack
from agentgit.store.chunks import CHUNK, HASH_BYTES, split_hashes
from agentgit.store.compression import CHUNKED, HEADER_BYTES, RAW, ZLIB, ZSTD, ZSTD_DICTIONARY, dictionary_of
from agentgit.store.lists import walk
from agentgit.store.store import Store

RESTORE = "Restore the database from a copy."

AT_ONCE = 2000
"""How many rows are read at once, and between two reports of how far it is."""


class Report(Protocol):
    """Takes what is found."""

    def add(self, row: str, what: str, todo: str) -> None:
        """Take one thing that is wrong; see `Finding`."""

    def did(self, count: int) -> None:
        """Take note that so many rows were looked at."""

    def attempt(self, row: str, look: Callable[[], None]) -> None:
        """Look at something; that it raises is a finding."""


def rows(connection: Connection, query: Any, report: Report) -> Iterator[Any]:
    """Read many rows a part at a time, and count them."""
    result = connection.execute(query, execution_options={"yield_per": AT_ONCE})
    for part in result.partitions():
        yield from part
        report.did(len(part))


def check_dictionaries(connection: Connection, store: Store, report: Report) -> set[int]:
    """Check the dictionaries; give the ids of those that are whole."""
    found = store.graphs.content.blobs.dictionaries
    whole: set[int] = set()
    for id in found.ids(connection):

        def look(id: int = id) -> None:
            found.find(connection, id)
            whole.add(id)

        report.attempt(f"dictionary {id}", look)
        report.did(1)
    return whole


def check_values(
    connection: Connection, store: Store, dictionaries: Collection[int], report: Report, *, hashes: bool
) -> set[bytes]:
    """Check the values; give the hashes of those that are stored.

    Args:
        connection: any.
        store: whose.
        dictionaries: the ids of those that are whole.
        report: takes what is found.
        hashes: True to also unpack each value and hash it.
    """
    mine = BLOB.c.tenant_id == store.tenant_id
    there = {bytes(key) for (key,) in connection.execute(select(BLOB.c.hash).where(mine))}
    check = _Values(connection, store, there, dictionaries, report, hashes=hashes)
    data = BLOB.c.data
    if not hashes:  # only what refers to other values is read in full
        refers = or_(BLOB.c.type.in_((LIST, RECORD)), BLOB.c.codec == CHUNKED)
        data = case((refers, data), else_=func.substr(data, 1, HEADER_BYTES))
    for row in rows(connection, select(BLOB.c.hash, BLOB.c.type, BLOB.c.codec, BLOB.c.size, data).where(mine), report):
        check.value(*row)
    if hashes:
        check.lists()
    return there


class _Values:
    """One check of the values of a tenant."""

    def __init__(
        self, connection: Connection, store: Store, there: set[bytes], dictionaries: Collection[int], report: Report,
        *, hashes: bool,
    ) -> None:  # fmt: skip
        self.connection, self.there, self.report, self.hashes = connection, there, report, hashes
        self.blobs = store.graphs.content.blobs
        self.dictionaries = dictionaries
        self._lists: dict[bytes, bytes] = {}
        """The lists as they are stored, to be hashed one after the other."""

    def value(self, key: bytes, type_: str, codec: int, size: int, data: bytes) -> None:
        """Check one row."""
        if type_ == LIST:
            self._list(key, data)
        elif codec == CHUNKED and type_ != CHUNK:
            self._refers(key, split_hashes(data), "its chunk")
            self._hash(key, type_, codec, size, data)
        elif codec not in (RAW, ZLIB, ZSTD, ZSTD_DICTIONARY):
            self._wrong(key, f"it is packed in a way ({codec}) that this release does not know", "Update agentgit, or "
                        "restore the database from a copy.")  # fmt: skip
        elif codec == ZSTD_DICTIONARY and not self._has_dictionary(key, data):
            return
        elif self.hashes or type_ == RECORD:
            self._hash(key, type_, codec, size, data)

    def _has_dictionary(self, key: bytes, data: bytes) -> bool:
        try:
            id = dictionary_of(data)
        except Exception:  # noqa: BLE001  # zstandard's own errors share no class with others
            self._wrong(key, "it is no zstd frame")
            return False
        if id not in self.dictionaries:
            self._wrong(key, f"it is packed with dictionary {id}, which is not there or damaged")
        return id in self.dictionaries

    def _hash(self, key: bytes, type_: str, codec: int, size: int, data: bytes) -> None:
        if not self.hashes and type_ != RECORD:
            return
        try:
            value = self.blobs.checked(self.connection, key, type_, codec, data)
        except (AgentGitError, ValueError) as error:
            self._wrong(key, str(error).split(" in table blob ")[-1].split(". ")[0].rstrip("."))
            return
        if len(value.data) != size:
            self._wrong(key, f"it says that it has {size} bytes, and it has {len(value.data)}")
        if type_ == RECORD:
            try:
                self._refers(key, unpack(value.data).values(), "its part")
            except ValueError as error:
                self._wrong(key, str(error))

    def _list(self, key: bytes, data: bytes) -> None:
        link = link_of(data)
        own = link.own if link is not None else data[1:]
        if (link is None and data[:1] != FULL) or len(own) % HASH_BYTES:
            self._wrong(key, "it is no list of hashes")
            return
        self._lists[key] = data
        if link is not None and link.base not in self.there:
            self._wrong(key, f"the list {link.base.hex()} that it continues is not there")
        self._refers(key, split_hashes(own), "its item")

    def _refers(self, key: bytes, others: Iterable[bytes], what: str) -> None:
        missing = [other for other in others if other not in self.there]
        if missing:
            self._wrong(key, f"{what} {missing[0].hex()} is not there" + _and_others(len(missing) - 1))

    def _wrong(self, key: bytes, what: str, todo: str = RESTORE) -> None:
        self.report.add(f"blob {key.hex()}", what, todo)

    def lists(self) -> None:
        """Hash each list."""
        for found in walk(self.connection, self.blobs, self._lists):
            link = link_of(self._lists[found.key])
            if found.wrong and (link is None or link.base in self.there):  # else it was told already
                self._wrong(found.key, found.wrong)


def _and_others(count: int) -> str:
    return f", nor are {count} others" if count else ""


def missing_from(there: set[bytes], named: Mapping[str, bytes]) -> str:
    """Say which of these values are not stored; nothing if all are."""
    missing = [name for name, key in named.items() if key not in there]
    if not missing:
        return ""
    return f"its value {missing[0]!r} ({named[missing[0]].hex()}) is not there" + _and_others(len(missing) - 1)
