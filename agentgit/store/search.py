"""Search: texts by their words, the newest first, from SQLite's FTS5 or PostgreSQL's GIN index.

A text that was found is shown only with a checkpoint that is there and holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, String, and_, bindparam, cast, column, select, table
from sqlalchemy.dialects.postgresql import TSQUERY

from agentgit.checkpoints.finding import Hit, Text
from agentgit.checkpoints.words import Query, snippet
from agentgit.errors import Corrupt
from agentgit.store.graph import GraphStore
from agentgit.store.graph_rows import Place
from agentgit.store.journal import INVOCATION
from agentgit.store.log import Part
from agentgit.store.prepared import Prepared
from agentgit.store.sessions import BRANCH, CHECKPOINT, Found
from agentgit.store.texts import (
    CALL,
    NAMED,
    TEXT,
    scope_of_branch,
    scope_of_session,
    text_of_call,
    text_of_checkpoint,
    text_of_message,
)

MOST_SCOPES = 50
"""How many branches a query names; beyond that the whole session is asked, and what is elsewhere is left out."""

AT_ONCE = 200
"""How many texts are looked at together."""


class Search:
    """What can be found of one tenant.

    Args:
        tenant_id: whose.
        graphs: its messages.
    """

    def __init__(self, tenant_id: int, graphs: GraphStore) -> None:
        self.tenant_id = tenant_id
        self.graphs = graphs

    def hits(
        self, connection: Connection, session_id: int, parts: Sequence[Part], wanted: Query, after: int, *, whole: bool
    ) -> Iterator[tuple[int, Hit]]:
        """Give what was found, the newest first, each with the id of its text.

        Args:
            connection: any.
            session_id: where.
            parts: the branches that count, each until where.
            wanted: what is looked for.
            after: only texts with smaller ids.
            whole: True if the parts are the whole session.
        """
        ends = {part.branch_id: part.until for part in parts}
        narrow = not whole and len(ends) <= MOST_SCOPES
        scopes = [scope_of_branch(one) for one in ends] if narrow else [scope_of_session(session_id)]
        for row in self._texts(connection, scopes, wanted, after):
            end = ends.get(row.internal_session_id)
            if end is None or row.number > end:
                continue
            at = self._holder(connection, row, end)
            text = self._text(connection, row, at) if at is not None else None
            if at is not None and text is not None:
                reference = f"{at.branch_name}#{at.number}"
                yield row.id, text.hit(row.kind, snippet(text.text, wanted), reference, at.id, at.created_at)

    def _texts(self, connection: Connection, scopes: Sequence[str], wanted: Query, after: int) -> Iterator[Found]:
        is_sqlite = connection.dialect.name == "sqlite"
        asked = fts_query(scopes, wanted) if is_sqlite else ts_query(scopes, wanted)
        while True:
            given = {"tenant": self.tenant_id, "query": asked, "after": after}
            ids = [row.id for row in _FOUND.all(connection, given)]
            if ids:
                rows: Sequence[Any] = connection.execute(_ROWS, {"tenant": self.tenant_id, "ids": ids}).all()
                yield from sorted(rows, key=lambda row: -row.id)
            if len(ids) < AT_ONCE:
                return
            after = ids[-1]

    def _holder(self, connection: Connection, row: Found, end: int) -> Found | None:
        """Find the first checkpoint that holds a text: that which it came with, or if it is gone a later one."""
        given = {"tenant": self.tenant_id, "branch": row.internal_session_id, "number": row.number, "end": end}
        at = _HOLDER.first(connection, given)
        if at is None or at.number == row.number or row.kind == CALL:
            return at
        if row.kind == NAMED:
            return None
        return at if row.hash in self._messages(connection, at) else None

    def _messages(self, connection: Connection, at: Found) -> Sequence[bytes]:
        found = self.graphs.find(connection, Place(at.thread_id, "", at.graph_checkpoint_id or ""))
        return self.graphs.message_hashes(connection, found) if found is not None else ()

    def _text(self, connection: Connection, row: Found, at: Found) -> Text | None:
        """Read a text; None if it is gone.

        Raises:
            Corrupt: it is damaged.
        """
        if row.kind == NAMED:
            return text_of_checkpoint(at)
        if row.kind == CALL:
            call = _CALL.first(connection, {"tenant": self.tenant_id, "call": row.row_id})
            return text_of_call(call) if call is not None else None
        try:
            return text_of_message(self.graphs.content.blobs.get_many(connection, [row.hash])[row.hash])
        except Corrupt:
            if self._messages(connection, at):
                raise
            return None  # a saver's `prune` or `delete_for_runs` took the checkpoint's state


def fts_query(scopes: Sequence[str], wanted: Query) -> str:
    """Write a query as FTS5 reads it; each word is quoted, and none holds a quote.

    Example:
        >>> print(fts_query(["§s1"], Query((("two", "chairs"), ("or",)))))
        ("§s1") AND "two chairs" AND "or"
    """
    places = " OR ".join(f'"{scope}"' for scope in scopes)
    return " AND ".join([f"({places})", *(f'"{" ".join(term)}"' for term in wanted.terms)])


def ts_query(scopes: Sequence[str], wanted: Query) -> str:
    """Write a query as PostgreSQL's tsquery; each word is quoted, and none holds a quote.

    Example:
        >>> print(ts_query(["§s1"], Query((("two", "chairs"), ("or",)))))
        ('§s1') & ('two' <-> 'chairs') & ('or')
    """
    places = " | ".join(f"'{scope}'" for scope in scopes)
    terms = (" <-> ".join(f"'{word}'" for word in term) for term in wanted.terms)
    return " & ".join(f"({part})" for part in (places, *terms))


# -- statements

_INDEX = table("search_words", column("rowid"), column("search_words"))
_matches = column("search_words").op("MATCH")(bindparam("query", type_=String()))
_FOUND = Prepared({
    "sqlite": select(_INDEX.c.rowid.label("id"))
    .where(_matches, _INDEX.c.rowid < bindparam("after"))
    .order_by(_INDEX.c.rowid.desc())
    .limit(AT_ONCE),
    "postgresql": select(TEXT.c.id)
    .where(
        TEXT.c.tenant_id == bindparam("tenant"),
        TEXT.c.words.op("@@")(cast(bindparam("query", type_=String()), TSQUERY)),
        TEXT.c.id < bindparam("after"),
    )
    .order_by(TEXT.c.id.desc())
    .limit(AT_ONCE),
})  # fmt: skip
_ROWS = select(TEXT.c.id, TEXT.c.internal_session_id, TEXT.c.number, TEXT.c.kind, TEXT.c.hash, TEXT.c.row_id).where(
    TEXT.c.tenant_id == bindparam("tenant"), TEXT.c.id.in_(bindparam("ids", expanding=True))
)
_HOLDER = Prepared(
    select(CHECKPOINT, BRANCH.c.name.label("branch_name"), BRANCH.c.thread_id)
    .join_from(
        CHECKPOINT,
        BRANCH,
        and_(BRANCH.c.tenant_id == CHECKPOINT.c.tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id),
    )
    .where(
        CHECKPOINT.c.tenant_id == bindparam("tenant"),
        CHECKPOINT.c.internal_session_id == bindparam("branch"),
        CHECKPOINT.c.number >= bindparam("number"),
        CHECKPOINT.c.number <= bindparam("end"),
    )
    .order_by(CHECKPOINT.c.number)
    .limit(1)
)
_CALL = Prepared(
    select(INVOCATION).where(INVOCATION.c.tenant_id == bindparam("tenant"), INVOCATION.c.id == bindparam("call"))
)
