"""Checks of stored values: their parts are stored, and each value matches the hash that is its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, case, func, or_

from agentgit.store.maintenance.fsck.reading import RESTORE, FsckReport, checked, read_raw_rows
from agentgit.store.objects.blobs import FULL, RECORD, Blobs, base_hash, link_of, own_items, unpack
from agentgit.store.objects.content import verify_lists
from agentgit.store.objects.packing import CHUNK, CHUNKED, HASH_BYTES, RAW, split_hashes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import decode_value
from agentgit.store.sql.tables import BLOB, LIST
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store

StoredHashes: TypeAlias = defaultdict[int, set[bytes]]
"""The hashes of the stored values of each session, and of each family of threads."""


def check_values(transaction: Reading, store: Store, report: FsckReport) -> StoredHashes:
    keys = checked(report, BLOB.c.external_session_id, BLOB.c.hash)
    stored_hashes: StoredHashes = defaultdict(set)
    for page in CompiledStatement(keys).pages(transaction, raw=True):
        for session_id, key in page:
            stored_hashes[session_id].add(key)
    checks: dict[int, _ValueCheck] = {}
    data: ColumnElement[Any] = BLOB.c.data
    # Without hashes, only values that refer to others are read; if the database is encrypted all, to decrypt them.
    if not report.with_hashes and transaction.seal is None:
        has_references = or_(BLOB.c.type == LIST, BLOB.c.type == RECORD, BLOB.c.codec == CHUNKED)
        data = case((has_references, data), else_=func.substr(data, 1, 0))
    columns = (BLOB.c.external_session_id, BLOB.c.hash, BLOB.c.type, BLOB.c.codec, BLOB.c.size, data.label("held"))
    for row in read_raw_rows(transaction, checked(report, *columns), report):
        session_id, key, type_, codec, size, stored_data = row
        if session_id not in checks:
            blobs = store.graphs.blobs.of(session_id)
            checks[session_id] = _ValueCheck(transaction, blobs, stored_hashes[session_id], report)
        check = checks[session_id]
        report.attempt(check.name(key), partial(check.check_value, key, type_, codec, size, stored_data))
    for check in checks.values() if report.with_hashes else ():
        check.check_lists()
    return stored_hashes


class _ValueCheck:
    def __init__(self, transaction: Reading, blobs: Blobs, stored_hashes: set[bytes], report: FsckReport) -> None:
        self.transaction, self.stored_hashes, self.report = transaction, stored_hashes, report
        self.with_hashes = report.with_hashes
        self.blobs = blobs
        self._lists: dict[bytes, bytes] = {}
        """The stored lists, by hash. `check_lists` compares their hashes after all rows were read."""

    def check_value(self, key: bytes, type_: str, codec: int, size: int, stored: bytes) -> None:
        if type_ == LIST:
            self._check_list(key, codec, size, stored)
            return
        data = decode_value(self.transaction.seal, "blob.data", stored)
        if codec == CHUNKED and type_ != CHUNK:
            self._check_references(key, split_hashes(data), "its chunk")
        if not self.with_hashes and type_ != RECORD:
            return
        value = self.blobs.checked(self.transaction, key, type_, codec, data).data
        if len(value) != size:
            self._add_finding(key, f"its recorded size is {size} bytes, but it has {len(value)}")
        if type_ == RECORD:
            self._check_references(key, unpack(value).values(), "its part")

    def _check_list(self, key: bytes, codec: int, size: int, data: bytes) -> None:
        link = link_of(data)
        items = own_items(data)
        if (link is None and data[:1] != FULL) or len(b"".join(items)) % HASH_BYTES or codec != RAW:
            self._add_finding(key, "it is not a list of hashes")
            return
        count = len(items) + (link.kept_count if link is not None else 0)
        if count != size:
            self._add_finding(key, f"its recorded size is {size} items, but it has {count}")
        if self.with_hashes:
            self._lists[key] = data
        self._check_references(key, [link.base] if link is not None else [], "the list that it continues,")
        self._check_references(key, items, "its item")

    def _check_references(self, key: bytes, referenced: Iterable[bytes], relation: str) -> None:
        self.report.add_missing(self.name(key), relation, referenced, self.stored_hashes)

    def _add_finding(self, key: bytes, problem: str) -> None:
        self.report.add(self.name(key), problem, RESTORE)

    def name(self, key: bytes) -> str:
        return f"blob {self.blobs.session_id}/{key.hex()}"

    def check_lists(self) -> None:
        for verified_list in verify_lists(self.transaction, self.blobs, self._lists):
            base = base_hash(self._lists[verified_list.key]) if verified_list.problem else None
            if verified_list.problem and (base is None or base in self.stored_hashes):  # otherwise already reported
                self._add_finding(verified_list.key, verified_list.problem)
