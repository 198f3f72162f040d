"""Checks of stored values: their parts are stored, and each value matches the hash that is its key."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, case, func, or_, select

from agentgit.errors import AgentGitError, Corrupt, KeyMissing
from agentgit.store.maintenance.fsck.cells import Cells, shown
from agentgit.store.objects.blobs import FULL, RECORD, continued, link_of, unpack
from agentgit.store.objects.content import verify_lists
from agentgit.store.objects.packing import CHUNK, CHUNKED, HASH_BYTES, RAW, ZLIB, ZSTD, split_hashes, unpacked
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import decode_value, seal_of
from agentgit.store.sql.tables import BLOB, LIST
from agentgit.store.store import Store

RESTORE = "Restore the database from a backup."


class FsckReport(Protocol):
    """The interface through which checks report findings and progress."""

    def add(self, row: str, what: str, todo: str) -> None:
        """Add a finding; see `Finding` for the arguments."""

    def advance(self, count: int) -> None:
        """Record that `count` more rows were checked."""

    def attempt(self, row: str, check: Callable[[], None]) -> None:
        """Run a check, and report what it raises as a finding."""


def rows(connection: Connection, query: Any, report: FsckReport, *, counted: bool = True) -> Iterator[Any]:
    """Yield the rows of a query, a page at a time, report their invalid cells, and count them. See `Cells`."""
    for page in Cells(connection, query).pages():
        for one in page:
            for what in one.problems:
                report.add(one.name, what, RESTORE)
            if one.has_key:
                yield one.row
        report.advance(len(page) if counted else 0)


def raw_rows(connection: Connection, query: Any, report: FsckReport) -> Iterator[Any]:
    """Yield the rows of a query as the driver returns them, and count them. See `CompiledStatement.pages`."""
    for page in CompiledStatement(query).pages(connection, raw=True):
        yield from page
        report.advance(len(page))


def check_values(connection: Connection, store: Store, report: FsckReport, *, hashes: bool) -> set[bytes]:
    """Check the stored values; return the hashes of all of them.

    Args:
        connection: Any open connection.
        store: The store of the tenant.
        report: The report that receives the findings.
        hashes: True to also decompress each value and compare its hash.
    """
    mine = BLOB.c.tenant_id == store.tenant_id
    pages = CompiledStatement(select(BLOB.c.hash).where(mine)).pages(connection, raw=True)
    there = {key for page in pages for (key,) in page}
    check = _ValueCheck(connection, store, there, report, hashes=hashes)
    data: ColumnElement[Any] = BLOB.c.data
    seal = seal_of(connection)
    # Without hashes, only values that refer to others are read; if the database is encrypted all, to decrypt them.
    if not hashes and seal is None:
        refers = or_(BLOB.c.type == LIST, BLOB.c.type == RECORD, BLOB.c.codec == CHUNKED)
        data = case((refers, data), else_=func.substr(data, 1, 0))
    query = select(BLOB.c.hash, BLOB.c.type, BLOB.c.codec, BLOB.c.size, data.label("held")).where(mine)
    for row in raw_rows(connection, query, report):
        key, type_, codec, size, stored = row
        if [type(cell) for cell in row] != [bytes, str, int, int, bytes]:
            report.add(f"blob {shown(key)}", "its columns hold values of the wrong type", RESTORE)
            continue
        with check.opening(key):
            check.value(key, type_, codec, size, stored if type_ == LIST else decode_value(seal, "blob.data", stored))
    if hashes:
        check.lists()
    return there


class _ValueCheck:
    """A check of the stored values of a tenant."""

    def __init__(
        self, connection: Connection, store: Store, there: set[bytes], report: FsckReport, *, hashes: bool
    ) -> None:
        self.connection, self.stored, self.report, self.hashes = connection, there, report, hashes
        self.blobs = store.graphs.content.blobs
        self._lists: dict[bytes, bytes] = {}
        """The stored lists, by hash. `lists` compares their hashes after all rows were read."""

    @contextmanager
    def opening(self, key: bytes) -> Iterator[None]:
        """Report a value that cannot be decrypted or read, and continue with the next."""
        try:
            yield
        except (KeyMissing, Corrupt) as error:
            self._wrong(key, str(error).split(": it was")[0].split(": somebody")[0])
        except (ValueError, TypeError, LookupError, ArithmeticError, struct.error) as error:
            self._wrong(key, f"it cannot be read ({error})")

    def value(self, key: bytes, type_: str, codec: int, size: int, data: bytes) -> None:
        """Check one row of the table `blob`."""
        if type_ == LIST:
            self._list(key, codec, size, data)
        elif codec == CHUNKED and type_ != CHUNK:
            self._refers(key, split_hashes(data), "its chunk")
            self._hash(key, type_, codec, size, data)
        elif codec not in (RAW, ZLIB, ZSTD):
            self._wrong(
                key,
                f"it has the compression {codec}, which this release does not know",
                "Update agentgit, or restore the database from a backup.",
            )
        elif self.hashes or type_ == RECORD:
            self._hash(key, type_, codec, size, data)

    def _hash(self, key: bytes, type_: str, codec: int, size: int, data: bytes) -> None:
        if not self.hashes and type_ != RECORD:
            return
        try:
            if codec == CHUNKED and type_ != CHUNK:
                value = self.blobs.checked(self.connection, key, type_, codec, data).data
            else:
                value = unpacked(codec, data)
        except AgentGitError as error:
            self._wrong(key, str(error).split(" in table blob ")[-1].split(". ")[0].rstrip("."))
            return
        except ValueError as error:
            self._wrong(key, f"cannot be unpacked ({error})")
            return
        if sha256(b"%b\0%b" % (type_.encode(), value)).digest() != key:
            self._wrong(key, "does not match its bytes")
        elif len(value) != size:
            self._wrong(key, f"its recorded size is {size} bytes, but it has {len(value)}")
        if type_ == RECORD:
            try:
                self._refers(key, unpack(value).values(), "its part")
            except ValueError as error:
                self._wrong(key, str(error))

    def _list(self, key: bytes, codec: int, size: int, data: bytes) -> None:
        link = link_of(data)
        own = link.own if link is not None else data[1:]
        if (link is None and data[:1] != FULL) or len(own) % HASH_BYTES or codec != RAW:
            self._wrong(key, "it is not a list of hashes")
            return
        count = len(own) // HASH_BYTES + (link.kept if link is not None else 0)
        if count != size:
            self._wrong(key, f"its recorded size is {size} items, but it has {count}")
        if self.hashes:
            self._lists[key] = data
        if link is not None and link.base not in self.stored:
            self._wrong(key, f"the list {link.base.hex()} that it continues is missing")
        self._refers(key, split_hashes(own), "its item")

    def _refers(self, key: bytes, others: Collection[bytes], what: str) -> None:
        if not self.stored.issuperset(others):
            missing = [other for other in others if other not in self.stored]
            self._wrong(key, f"{what} {missing[0].hex()} is missing" + _and_others(len(missing) - 1))

    def _wrong(self, key: bytes, what: str, todo: str = RESTORE) -> None:
        self.report.add(f"blob {key.hex()}", what, todo)

    def lists(self) -> None:
        """Check the hash of each list."""
        for found in verify_lists(self.connection, self.blobs, self._lists):
            base = continued(self._lists[found.key]) if found.wrong else None
            if found.wrong and (base is None or base in self.stored):  # otherwise already reported
                self._wrong(found.key, found.wrong)


def _and_others(count: int) -> str:
    return f", and so are {count} others" if count else ""


def missing_from(there: set[bytes], named: Mapping[str, bytes]) -> str:
    """Describe which of the named values are not stored; return an empty string if all are."""
    missing = [name for name, key in named.items() if key not in there]
    if not missing:
        return ""
    return f"its value {missing[0]!r} ({named[missing[0]].hex()}) is missing" + _and_others(len(missing) - 1)
