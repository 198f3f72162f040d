"""Search for texts by their words, with SQLite's FTS5 or PostgreSQL's GIN index.

Texts that people wrote at checkpoints come first, then the rest, each newest first. A text is returned only if an
existing checkpoint holds it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Connection, String, and_, any_, bindparam, cast, column, select, table, tuple_
from sqlalchemy.dialects.postgresql import TSQUERY

from agentgit.checkpoints.queries import TOP, Hit, HitCursor, Text
from agentgit.checkpoints.search_words import Query, snippet
from agentgit.errors import Corrupt
from agentgit.store.objects.blobs import Leaf
from agentgit.store.records.log import LogPart
from agentgit.store.records.sessions import StoredRow
from agentgit.store.search.index import (
    CALL,
    MESSAGE,
    NAMED,
    NAMES,
    scope_of_branch,
    scope_of_session,
    text_of_call,
    text_of_checkpoint,
    text_of_message,
)
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import seal_of
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, SEARCH_TEXT, TOOL_INVOCATION
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.graph_store import GraphStore

MOST_SCOPES = 50
"""The maximum number of branches in one query."""

AT_ONCE = 200
"""The maximum number of texts that one query returns."""

MAX_CHECKPOINTS_BEYOND = 500
"""The maximum number of checkpoints after the end of a part for which its branch shares a query with others.

If a branch has more, its own query begins at the newest text of the part.
"""

TAIL_SIZE = 1_000
"""The number of last texts of a part that are examined to find the newest one."""


class Search:
    """Search in the data of one tenant.

    Args:
        tenant_id: The tenant.
        graphs: The store of the tenant's messages.
    """

    def __init__(self, tenant_id: int, graphs: GraphStore) -> None:
        self.tenant_id = tenant_id
        self.graphs = graphs

    def hits(
        self,
        connection: Connection,
        session_id: int,
        parts: Sequence[LogPart],
        wanted: Query,
        after: HitCursor,
        *,
        whole: bool,
        at_once: int = AT_ONCE,
    ) -> Iterator[tuple[HitCursor, Hit]]:
        """Yield the hits, best first, each with its rank.

        Args:
            connection: Any open connection.
            session_id: The session.
            parts: The branches to search, each up to a checkpoint.
            wanted: The query.
            after: The rank after which to continue.
            whole: True if the parts are the whole session.
            at_once: The number of texts to read together, about as many as the caller wants.
        """
        ends = {part.branch_id: part.until for part in parts}
        scopes = [scope_of_session(session_id)] if whole else None
        if connection.dialect.name != "sqlite":
            # The plan must depend on how many texts have the word. A generic plan ignores that and takes half a second.
            connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_custom_plan")
        for named in (True, False) if after.named else (False,):
            before = after.id if named is after.named else TOP.id
            rows = self._found(connection, parts, scopes, wanted, HitCursor(named, before))
            inside = (row for row in rows if row.number <= ends.get(row.internal_session_id, 0))
            if seal_of(connection) is not None:  # other texts were planted, to show encrypted values
                inside = (row for row in inside if row.kind == NAMED)
            while some := list(islice(inside, min(at_once, AT_ONCE))):
                for row, hit in self._hits(connection, some, ends, wanted):
                    yield HitCursor(named, row.id), hit

    # -- which texts

    def _found(
        self,
        connection: Connection,
        parts: Sequence[LogPart],
        session: Sequence[str] | None,
        wanted: Query,
        after: HitCursor,
    ) -> Iterator[StoredRow]:
        """Yield the texts that have all words, newest first. Some may lie after the end of their part."""
        if session is not None:
            return self._texts(connection, parts, session, wanted, after)
        near = [scope_of_branch(part.branch_id) for part in parts if part.beyond <= MAX_CHECKPOINTS_BEYOND]
        asked = [(scopes, after) for scopes in slices(near, MOST_SCOPES)]
        asked += [
            (
                [scope_of_branch(part.branch_id)],
                HitCursor(after.named, min(after.id, self._newest(connection, part) + 1)),
            )
            for part in parts
            if part.beyond > MAX_CHECKPOINTS_BEYOND
        ]
        streams = [self._texts(connection, parts, scopes, wanted, first) for scopes, first in asked]
        return heapq.merge(*streams, key=lambda row: row.id, reverse=True)

    def _newest(self, connection: Connection, part: LogPart) -> int:
        """Return the greatest id of the texts of a part."""
        given = {"tenant": self.tenant_id, "branch": part.branch_id, "end": part.until}
        return max((row.id for row in _UNTIL.all(connection, given)), default=0)

    def _texts(
        self, connection: Connection, parts: Sequence[LogPart], scopes: Sequence[str], wanted: Query, after: HitCursor
    ) -> Iterator[StoredRow]:
        # With row-level security, PostgreSQL may not use the index of words first, but it can use the one of branches.
        branches = [part.branch_id for part in parts]
        is_sqlite = connection.dialect.name == "sqlite"
        asked = (fts_query if is_sqlite else ts_query)(scopes, wanted, named=after.named)
        last = after.id
        while True:
            given = {"tenant": self.tenant_id, "query": asked, "after": last, "branches": branches}
            ids = [row.id for row in _FOUND.all(connection, given)]
            if ids:
                rows: Sequence[Any] = connection.execute(_ROWS, {"tenant": self.tenant_id, "ids": ids}).all()
                yield from sorted(rows, key=lambda row: -row.id)
            if len(ids) < AT_ONCE:
                return
            last = ids[-1]

    # -- the texts, and the checkpoints that hold them

    def _hits(
        self, connection: Connection, rows: Sequence[StoredRow], ends: dict[int, int], wanted: Query
    ) -> Iterator[tuple[StoredRow, Hit]]:
        holders = self._holders(connection, rows, ends)
        held = [(row, at) for row in rows if (at := holders.get(row.id)) is not None]
        calls, leaves = self._calls(connection, held), self._leaves(connection, held)
        for row, at in held:
            text = self._text(connection, row, at, calls, leaves)
            if text is not None:
                reference = f"{at.branch_name}#{at.number}"
                yield row, text.hit(row.kind, snippet(text.text, wanted), reference, at.id, at.created_at)

    def _holders(self, connection: Connection, rows: Sequence[StoredRow], ends: dict[int, int]) -> dict[int, StoredRow]:
        """Return the first checkpoint that holds each text: its own or, if that was deleted, a later one."""
        places = list({(row.internal_session_id, row.number) for row in rows})
        with_them: Sequence[Any] = connection.execute(_WITH, {"tenant": self.tenant_id, "places": places}).all()
        at = {(one.internal_session_id, one.number): one for one in with_them}
        found = {
            row.id: at.get((row.internal_session_id, row.number))
            or self._later(connection, row, ends[row.internal_session_id])
            for row in rows
        }
        return {text_id: holder for text_id, holder in found.items() if holder is not None}

    def _later(self, connection: Connection, row: StoredRow, end: int) -> StoredRow | None:
        """Return a later checkpoint that holds a text whose own checkpoint was deleted; None if there is none."""
        if row.kind == NAMED:
            return None
        given = {"tenant": self.tenant_id, "branch": row.internal_session_id, "number": row.number, "end": end}
        at: StoredRow | None = _LATER.first(connection, given)
        return at if at is None or row.kind == CALL or row.hash in self._messages(connection, at) else None

    def _messages(self, connection: Connection, at: StoredRow) -> Sequence[bytes]:
        found = self.graphs.find(connection, GraphKey(at.thread_id, "", at.graph_checkpoint_id or ""))
        return self.graphs.message_hashes(connection, found) if found is not None else ()

    def _calls(self, connection: Connection, held: Sequence[tuple[StoredRow, StoredRow]]) -> dict[int, StoredRow]:
        ids = [row.row_id for row, _ in held if row.kind == CALL]
        rows: Sequence[Any] = connection.execute(_CALLS, {"tenant": self.tenant_id, "ids": ids}).all() if ids else ()
        return {row.id: row for row in rows}

    def _leaves(self, connection: Connection, held: Sequence[tuple[StoredRow, StoredRow]]) -> dict[bytes, Leaf]:
        """Read the messages together. If one is damaged, return none, so that each is then read separately."""
        try:
            return self.graphs.content.blobs.get_many(connection, [row.hash for row, _ in held if row.kind == MESSAGE])
        except Corrupt:
            return {}

    def _text(
        self,
        connection: Connection,
        row: StoredRow,
        at: StoredRow,
        calls: dict[int, StoredRow],
        leaves: dict[bytes, Leaf],
    ) -> Text | None:
        """Return a text; None if it no longer exists.

        Raises:
            Corrupt: The text is damaged.
        """
        if row.kind == NAMED:
            return text_of_checkpoint(at)
        if row.kind == CALL:
            return text_of_call(calls[row.row_id]) if row.row_id in calls else None
        if row.hash in leaves:
            return text_of_message(leaves[row.hash])
        try:
            return text_of_message(self.graphs.content.blobs.get_many(connection, [row.hash])[row.hash])
        except Corrupt:
            if self._messages(connection, at):
                raise
            return None  # a saver's `prune` or `delete_for_runs` deleted the checkpoint's state


def fts_query(scopes: Sequence[str], wanted: Query, *, named: bool) -> str:
    """Format a query for FTS5. Each word is quoted, and no word contains a quote.

    Example:
        >>> print(fts_query(["§s1"], Query((("two", "chairs"), ("or",))), named=False))
        (("§s1") AND "two chairs" AND "or") NOT "§n"
    """
    places = " OR ".join(f'"{scope}"' for scope in scopes)
    terms = " AND ".join([f"({places})", *(f'"{" ".join(term)}"' for term in wanted.terms)])
    return f'({terms}) {"AND" if named else "NOT"} "{NAMES}"'


def ts_query(scopes: Sequence[str], wanted: Query, *, named: bool) -> str:
    """Format a query as a PostgreSQL tsquery. Each word is quoted, and no word contains a quote.

    Example:
        >>> print(ts_query(["§s1"], Query((("two", "chairs"), ("or",))), named=True))
        ('§s1') & ('two' <-> 'chairs') & ('or') & '§n'
    """
    places = " | ".join(f"'{scope}'" for scope in scopes)
    terms = (" <-> ".join(f"'{word}'" for word in term) for term in wanted.terms)
    return " & ".join([*(f"({part})" for part in (places, *terms)), f"{'' if named else '!'}'{NAMES}'"])


# -- statements

_INDEX = table("search_words", column("rowid"), column("search_words"))
_matches = column("search_words").op("MATCH")(bindparam("query", type_=String()))
_FOUND = CompiledStatement(
    {
        "sqlite": select(_INDEX.c.rowid.label("id"))
        .where(_matches, _INDEX.c.rowid < bindparam("after"))
        .order_by(_INDEX.c.rowid.desc())
        .limit(AT_ONCE),
        "postgresql": select(SEARCH_TEXT.c.id)
        .where(
            SEARCH_TEXT.c.tenant_id == bindparam("tenant"),
            SEARCH_TEXT.c.words.op("@@")(cast(bindparam("query", type_=String()), TSQUERY)),
            SEARCH_TEXT.c.internal_session_id == any_(bindparam("branches", type_=ARRAY(BigInteger))),
            SEARCH_TEXT.c.id < bindparam("after"),
        )
        .order_by(SEARCH_TEXT.c.id.desc())
        .limit(AT_ONCE),
    }
)
_ROWS = select(
    SEARCH_TEXT.c.id,
    SEARCH_TEXT.c.internal_session_id,
    SEARCH_TEXT.c.number,
    SEARCH_TEXT.c.kind,
    SEARCH_TEXT.c.hash,
    SEARCH_TEXT.c.row_id,
).where(SEARCH_TEXT.c.tenant_id == bindparam("tenant"), SEARCH_TEXT.c.id.in_(bindparam("ids", expanding=True)))
_UNTIL = CompiledStatement(
    select(SEARCH_TEXT.c.id)
    .where(
        SEARCH_TEXT.c.tenant_id == bindparam("tenant"),
        SEARCH_TEXT.c.internal_session_id == bindparam("branch"),
        SEARCH_TEXT.c.number <= bindparam("end"),
    )
    .order_by(SEARCH_TEXT.c.number.desc())
    .limit(TAIL_SIZE)
)
_C = CHECKPOINT.c
_HOLDERS = select(CHECKPOINT, BRANCH.c.name.label("branch_name"), BRANCH.c.thread_id).join_from(
    CHECKPOINT, BRANCH, and_(BRANCH.c.tenant_id == _C.tenant_id, BRANCH.c.id == _C.internal_session_id)
)
_WITH = _HOLDERS.where(
    _C.tenant_id == bindparam("tenant"),
    tuple_(_C.internal_session_id, _C.number).in_(bindparam("places", expanding=True)),
)
_LATER = CompiledStatement(
    _HOLDERS.where(
        _C.tenant_id == bindparam("tenant"),
        _C.internal_session_id == bindparam("branch"),
        _C.number > bindparam("number"),
        _C.number <= bindparam("end"),
    )
    .order_by(_C.number)
    .limit(1)
)
_CALLS = select(TOOL_INVOCATION).where(
    TOOL_INVOCATION.c.tenant_id == bindparam("tenant"), TOOL_INVOCATION.c.id.in_(bindparam("ids", expanding=True))
)
