"""The encrypted columns: their values as they are stored, and the key of each value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Column, LargeBinary, MetaData, Table, Text, func, select

from agentgit.store.sql.columns import Payload, SealedText
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import TEXT_MARK, parse_key_name, sealed_text_bytes
from agentgit.store.sql.tables import BLOB, LIST, METADATA
from agentgit.store.sql.transaction import Reading

HEAD_BYTES = 40
"""The number of bytes of an encrypted value that contain the name of its key. In base64 it is a third more."""


@cache
def raw_table(name: str) -> Table:
    """Return a table whose values are read as they are stored."""
    stored_types: dict[type, Any] = {Payload: LargeBinary, SealedText: Text}
    columns = [
        Column(c.name, stored_types.get(type(c.type), lambda c=c: c.type)(), primary_key=c.primary_key)
        for c in METADATA.tables[name].c
    ]
    return Table(name, MetaData(), *columns)


@cache
def sealed_columns() -> Mapping[str, Sequence[str]]:
    columns_by_table = {
        table.name: [c.name for c in table.c if isinstance(c.type, Payload | SealedText)]
        for table in METADATA.sorted_tables
    }
    return {name: columns for name, columns in columns_by_table.items() if columns}


def encrypted_rows(table: Table) -> list[Any]:
    """Return the conditions for rows that may be encrypted. Lists are not: the database itself follows their hashes."""
    return [table.c.type != LIST] if table.name == BLOB.name else []


def count_values_by_key(transaction: Reading) -> dict[str, int]:
    """Count the values by the key that sealed them. The empty name is for those without a key."""
    counts: Counter[str] = Counter()
    for name, columns in sealed_columns().items():
        table = raw_table(name)
        for column in columns:
            head = func.substr(table.c[column], 1, 2 * HEAD_BYTES).label("head")
            query = select(head).where(*encrypted_rows(table), table.c[column].is_not(None))
            for page in CompiledStatement(query).pages(transaction, raw=True):
                counts.update(key_name_of(head) for (head,) in page)
    return dict(sorted(counts.items()))


def key_name_of(stored: Any) -> str:
    """Return the name of the key of a stored value, or of its beginning; empty if it has none."""
    if not isinstance(stored, str | bytes | memoryview):
        return ""
    if isinstance(stored, str):
        # base64 has groups of four characters, and the beginning of a text may end within one.
        length = len(stored) - (len(stored) - len(TEXT_MARK)) % 4
        stored = sealed_text_bytes(stored[:length])
    return parse_key_name(bytes(stored)) or ""
