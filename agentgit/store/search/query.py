"""Search for texts by their words, with SQLite's FTS5 or PostgreSQL's GIN index.

Texts that people wrote at checkpoints come first, then the rest, each newest first. A text is returned only if an
existing checkpoint holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Integer,
    String,
    any_,
    bindparam,
    cast,
    column,
    exists,
    func,
    select,
    table,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB, TSQUERY

from agentgit.checkpoints.queries import FIRST_TIME_CURSOR, Hit, HitCursor
from agentgit.checkpoints.search_words import Query, make_snippet
from agentgit.store.records.checkpoints import CHECKPOINT_WITH_BRANCH
from agentgit.store.records.journal import UNBOUNDED
from agentgit.store.records.log import LogPart
from agentgit.store.records.sessions import StoredRow
from agentgit.store.search.index import (
    NAMED_MARKER,
    scope_of_session,
    text_of_call,
    text_of_checkpoint,
    text_of_message,
    undamaged_messages,
)
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import CALL, CHECKPOINT, MESSAGE, NAMED, SEARCH_TEXT, TOOL_INVOCATION
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.graph_store import GraphStore

TEXTS_PER_QUERY = 200
"""The maximum number of texts that one query returns."""


class Search:
    def __init__(self, graphs: GraphStore) -> None:
        self.graphs = graphs

    def hits(
        self,
        transaction: Reading,
        session_id: int,
        parts: Sequence[LogPart],
        query: Query,
        after: HitCursor,
        *,
        page_size: int = TEXTS_PER_QUERY,
    ) -> Iterator[tuple[HitCursor, Hit]]:
        """Yield the hits, best first, each with its rank."""
        last_numbers = {part.branch_id: part.last_number for part in parts}
        if not transaction.is_sqlite:
            # The plan must depend on how many texts have the word. A generic plan ignores that and takes half a second.
            transaction.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))
        for named in (True, False) if after.named else (False,):
            before_id = after.id if named is after.named else FIRST_TIME_CURSOR.id
            rows = self._read_texts(transaction, session_id, last_numbers, query, HitCursor(named, before_id))
            if transaction.seal is not None:  # other texts were planted, to show encrypted values
                rows = (row for row in rows if row.kind == NAMED)
            while page := list(islice(rows, min(page_size, TEXTS_PER_QUERY))):
                for row, hit in self._hits_of_texts(transaction, session_id, page, last_numbers, query):
                    yield HitCursor(named, row.id), hit

    # -- which texts

    def _read_texts(
        self, transaction: Reading, session_id: int, last_numbers: dict[int, int], query: Query, after: HitCursor
    ) -> Iterator[StoredRow]:
        """Yield the texts of parts of branches that have all words, newest first."""
        write_query = fts_query if transaction.is_sqlite else ts_query
        parameters = {
            "query": write_query(scope_of_session(session_id), query, named=after.named),
            "branches": json.dumps([*last_numbers]) if transaction.is_sqlite else [*last_numbers],
            "ends": json.dumps({id: number for id, number in last_numbers.items() if number < UNBOUNDED}),
            "after": after.id,
        }
        while True:
            rows = _MATCHES.all(transaction, parameters)
            yield from rows
            if len(rows) < TEXTS_PER_QUERY:
                return
            parameters["after"] = rows[-1].id

    # -- the texts, and the checkpoints that hold them

    def _hits_of_texts(
        self,
        transaction: Reading,
        session_id: int,
        rows: Sequence[StoredRow],
        last_numbers: dict[int, int],
        query: Query,
    ) -> Iterator[tuple[StoredRow, Hit]]:
        checkpoints = self._find_checkpoints(transaction, rows, last_numbers)
        held_texts = [(row, checkpoint) for row in rows if (checkpoint := checkpoints.get(row.id)) is not None]
        call_ids = [row.row_id for row, _ in held_texts if row.kind == CALL]
        calls = {call.id: call for call in transaction.execute(_CALLS, {"ids": call_ids})} if call_ids else {}
        blobs, hashes = self.graphs.blobs.of(session_id), [row.hash for row, _ in held_texts if row.kind == MESSAGE]
        messages = undamaged_messages(transaction, blobs, hashes)
        for row, checkpoint in held_texts:
            if row.kind == NAMED:
                text = text_of_checkpoint(checkpoint)
            elif row.kind == CALL and row.row_id in calls:
                text = text_of_call(calls[row.row_id])
            elif row.kind == MESSAGE and row.hash in messages:
                text = text_of_message(messages[row.hash])
            else:
                # The text is damaged, unless a saver's `prune` or `delete_for_runs` deleted the checkpoint's state.
                if row.kind == MESSAGE and self._message_hashes(transaction, checkpoint):
                    blobs.get_many(transaction, [row.hash])  # raises
                continue
            place = f"{checkpoint.branch_name}#{checkpoint.number}", checkpoint.id, checkpoint.created_at
            yield row, text.to_hit(row.kind, make_snippet(text.text, query), *place)

    def _find_checkpoints(
        self, transaction: Reading, rows: Sequence[StoredRow], last_numbers: dict[int, int]
    ) -> dict[int, StoredRow]:
        """Return the first checkpoint that holds each text: its own or, if that was deleted, a later one."""
        keys = list({(row.internal_session_id, row.number) for row in rows})
        own_checkpoints: Sequence[Any] = transaction.execute(_CHECKPOINTS_BY_KEY, {"places": keys}).all()
        checkpoint_by_key = {(one.internal_session_id, one.number): one for one in own_checkpoints}
        checkpoint_by_text = {
            row.id: checkpoint_by_key.get((row.internal_session_id, row.number))
            or self._find_later_checkpoint(transaction, row, last_numbers[row.internal_session_id])
            for row in rows
        }
        return {text_id: holder for text_id, holder in checkpoint_by_text.items() if holder is not None}

    def _find_later_checkpoint(self, transaction: Reading, row: StoredRow, last_number: int) -> StoredRow | None:
        """Return a later checkpoint that holds a text whose own checkpoint was deleted; None if there is none."""
        if row.kind == NAMED:
            return None
        parameters = {"branch": row.internal_session_id, "number": row.number, "end": last_number}
        checkpoint = _NEXT_CHECKPOINT.first(transaction, parameters)
        return (
            checkpoint
            if checkpoint is None or row.kind == CALL or row.hash in self._message_hashes(transaction, checkpoint)
            else None
        )

    def _message_hashes(self, transaction: Reading, checkpoint: StoredRow) -> Sequence[bytes]:
        graph_checkpoint = self.graphs.find(
            transaction, GraphKey(checkpoint.thread_id, "", checkpoint.graph_checkpoint_id or "")
        )
        return self.graphs.message_hashes(transaction, graph_checkpoint) if graph_checkpoint is not None else ()


def fts_query(scope: str, query: Query, *, named: bool) -> str:
    """Format a query for FTS5. Each word is quoted, and no word contains a quote."""
    terms = " AND ".join([f'"{scope}"', *(f'"{" ".join(term)}"' for term in query.terms)])
    return f'({terms}) {"AND" if named else "NOT"} "{NAMED_MARKER}"'


def ts_query(scope: str, query: Query, *, named: bool) -> str:
    """Format a query as a PostgreSQL tsquery. Each word is quoted, and no word contains a quote."""
    terms = (" <-> ".join(f"'{word}'" for word in term) for term in query.terms)
    return " & ".join([*(f"({part})" for part in (f"'{scope}'", *terms)), f"{'' if named else '!'}'{NAMED_MARKER}'"])


# -- statements

_FTS_TABLE = table("search_words", column("rowid"), column("search_words"))
_matches_query = column("search_words").op("MATCH")(bindparam("query", type_=String()))
_given_branches = func.json_each(bindparam("branches", type_=String())).table_valued("value")
_given_ends = func.json_each(bindparam("ends", type_=String())).table_valued("key", "value")
_given_ends_there = func.jsonb_each_text(cast(bindparam("ends", type_=String()), JSONB)).table_valued("key", "value")


def _is_within(ends: Any) -> Any:
    """Return the condition that a text is not after the end of its part."""
    is_beyond = cast(ends.c.value, Integer) < SEARCH_TEXT.c.number
    return ~exists().where(ends.c.key == cast(SEARCH_TEXT.c.internal_session_id, String), is_beyond)


_TEXTS = select(*(SEARCH_TEXT.c[name] for name in ("id", "internal_session_id", "number", "kind", "hash", "row_id")))
_MATCHES = CompiledStatement(
    {
        "sqlite": _TEXTS.join_from(_FTS_TABLE, SEARCH_TEXT, SEARCH_TEXT.c.id == _FTS_TABLE.c.rowid)
        .where(
            _matches_query,
            SEARCH_TEXT.c.internal_session_id.in_(select(_given_branches.c.value)),
            _is_within(_given_ends),
            _FTS_TABLE.c.rowid < bindparam("after"),
        )
        .order_by(_FTS_TABLE.c.rowid.desc())
        .limit(TEXTS_PER_QUERY),
        "postgresql": _TEXTS.where(
            SEARCH_TEXT.c.words.op("@@")(cast(bindparam("query", type_=String()), TSQUERY)),
            # With it, the server can begin with the index of branches where that of words would find too much.
            SEARCH_TEXT.c.internal_session_id == any_(bindparam("branches", type_=ARRAY(BigInteger))),
            _is_within(_given_ends_there),
            SEARCH_TEXT.c.id < bindparam("after"),
        )
        .order_by(SEARCH_TEXT.c.id.desc())
        .limit(TEXTS_PER_QUERY),
    }
)
_C = CHECKPOINT.c
_CHECKPOINTS_BY_KEY = CHECKPOINT_WITH_BRANCH.where(
    tuple_(_C.internal_session_id, _C.number).in_(bindparam("places", expanding=True))
)
_NEXT_CHECKPOINT = CompiledStatement(
    CHECKPOINT_WITH_BRANCH.where(
        _C.internal_session_id == bindparam("branch"), _C.number > bindparam("number"), _C.number <= bindparam("end")
    )
    .order_by(_C.number)
    .limit(1)
)
_CALLS = select(TOOL_INVOCATION).where(TOOL_INVOCATION.c.id.in_(bindparam("ids", expanding=True)))
