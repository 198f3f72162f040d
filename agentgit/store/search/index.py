"""The search index: texts and their words, updated at the end of each turn and, if necessary, before a search.

Each branch stores the number of its last indexed checkpoint. Later checkpoints are indexed once: the messages that the
previous checkpoint did not have, the calls since then, and the checkpoint's own name. A fork has no texts of its own,
so it costs nothing. Texts that arrive in any other way (an import, a restored copy) are indexed by the next search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, cast, column, delete, insert, select, table, update
from sqlalchemy.dialects.postgresql import TSVECTOR

from agentgit.checkpoints.queries import Text, plain
from agentgit.checkpoints.search_words import composed, words
from agentgit.effects.invocation import PAUSED, REDO
from agentgit.sessions.messages import from_stored, text_of
from agentgit.store.objects.blobs import Leaf, shared_prefix
from agentgit.store.objects.plain_values import CUSTOM_SERDE, show_message
from agentgit.store.records.sessions import SessionStore, StoredRow
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, SEARCH_TEXT, TOOL_INVOCATION
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.graph_store import GraphStore
from agentgit.values import stored_json

MESSAGE, CALL, NAMED = "message", "call", "checkpoint"

NAMES = "§n"
"""The marker word of all texts that people wrote at checkpoints. No word of a text contains `§`."""

CHECKPOINTS_AT_ONCE = 200
"""The maximum number of checkpoints that one transaction indexes, so that other writers do not wait long."""


class NewText(NamedTuple):
    """A text to index: its source, and the number of the first checkpoint that holds it."""

    number: int
    kind: str
    text: str
    hash: bytes | None = None
    row_id: int | None = None


class SearchIndex:
    """The search index of one tenant.

    Args:
        tenant_id: The tenant.
        sessions: The store of the branches.
        graphs: The store of the messages.
        names_only: True to index only the names of checkpoints, because the index stores words unencrypted.
    """

    def __init__(self, tenant_id: int, sessions: SessionStore, graphs: GraphStore, *, names_only: bool = False) -> None:
        self.tenant_id = tenant_id
        self.names_only = names_only
        self.sessions = sessions
        self.graphs = graphs

    def unindexed(self, connection: Connection, session_id: int) -> dict[int, int]:
        """Return the branches of a session that have checkpoints to index, each with an upper limit of their number."""
        rows = _BEHIND.all(connection, {"tenant": self.tenant_id, "session": session_id})
        return {row.id: row.number - row.searched for row in rows}

    def index_next(self, connection: Connection, branch_id: int) -> bool:
        """Index the texts of a branch's next checkpoints, and return whether there may be more.

        Args:
            connection: A connection in a transaction that writes.
            branch_id: The branch.

        Raises:
            Corrupt: One of the texts cannot be read. Nothing was written.
        """
        found = _NEXT.all(connection, {"tenant": self.tenant_id, "branch": branch_id})
        rows = [row for row in found if row.number > row.searched]
        if not rows:
            return False
        fresh = list(self._fresh(connection, found, rows))  # first, because damaged data raises here
        _MOVE.run(connection, {"tenant": self.tenant_id, "branch": branch_id, "now": rows[-1].number})
        self._add(connection, rows[0], fresh)
        return len(found) == CHECKPOINTS_AT_ONCE

    # -- what is new

    def _fresh(
        self, connection: Connection, found: Sequence[StoredRow], rows: Sequence[StoredRow]
    ) -> Iterator[NewText]:
        if self.names_only:
            yield from (NewText(row.number, NAMED, row.name, row_id=row.id) for row in rows if row.name)
            return
        branch, before = rows[0], self._before(connection, found[0])
        # The last indexed checkpoint may have been deleted. Then new texts are compared with those in the index.
        known = self._known(connection, branch) if branch.searched and before is None else set()
        messages = self._messages(connection, [row for row in (before, *rows) if row is not None])
        held, at = messages[_state(before)], _state(before)
        added: list[tuple[int, bytes]] = []
        made: list[tuple[int, int]] = []
        for row in rows:
            if row.name or (row.description and not row.is_auto):
                yield NewText(row.number, NAMED, text_of_checkpoint(row).text, row_id=row.id)
            if _state(row) != at:
                now = messages[_state(row)]
                added += [(row.number, key) for key in _added(held, now) if key not in known]
                held, at = now, _state(row)
            made.append((row.position - branch.inherited, row.number))
        is_own = before is not None and before.internal_session_id == branch.internal_session_id
        first = before.position - branch.inherited if before is not None and is_own else 0
        yield from self._calls(connection, branch, max(0, first), made, known)
        leaves = self.graphs.content.blobs.get_many(connection, [key for _, key in added])
        for number, key in added:
            if leaves[key].type != CUSTOM_SERDE:
                yield NewText(number, MESSAGE, text_of_message(leaves[key]).text, hash=key)

    def _before(self, connection: Connection, first: StoredRow) -> StoredRow | None:
        """Return the checkpoint before those to index, which may be the branch point; None if it is unknown.

        Args:
            connection: Any open connection.
            first: The first row of `_NEXT`.
        """
        if first.number == first.searched:
            return first
        if first.searched or first.parent_id is None:
            return None
        return _BY_ID.first(connection, {"tenant": self.tenant_id, "checkpoint": first.branch_point_id})

    def _known(self, connection: Connection, branch: StoredRow) -> set[bytes | int]:
        """Return the hashes and row ids of the indexed texts of a branch."""
        given = {"tenant": self.tenant_id, "branch": branch.internal_session_id}
        return {row.hash or row.row_id for row in _OF_BRANCH.all(connection, given)}

    def _messages(self, connection: Connection, rows: Iterable[StoredRow]) -> dict[str | None, Sequence[bytes]]:
        """Return the message hashes of checkpoints by graph checkpoint id; empty if the graph checkpoint is gone."""
        asked = {
            row.graph_checkpoint_id: self.graphs.prefetch(
                connection, GraphKey(row.thread_id, "", row.graph_checkpoint_id)
            )
            for row in rows
            if row.graph_checkpoint_id is not None and row.message_count
        }
        held: dict[str | None, Sequence[bytes]] = defaultdict(tuple)
        for name, find in asked.items():
            at = find()
            held[name] = self.graphs.message_hashes(connection, at) if at is not None else ()
        return held

    def _calls(
        self, connection: Connection, branch: StoredRow, first: int, made: Sequence[tuple[int, int]], known: set[Any]
    ) -> Iterator[NewText]:
        """Yield the calls that a branch made itself, each with the first checkpoint made after it."""
        last = max(count for count, _ in made)
        if last <= first:
            return
        given = {"tenant": self.tenant_id, "branch": branch.internal_session_id, "first": first, "count": last - first}
        for at, row in enumerate(_CALLS.all(connection, given), first):
            number = next((number for count, number in made if count > at), None)
            if number is not None and row.id not in known:
                yield NewText(number, CALL, text_of_call(row).text, row_id=row.id)

    # -- words

    def _add(self, connection: Connection, branch: StoredRow, fresh: Iterable[NewText]) -> None:
        scope = [scope_of_session(branch.external_session_id), scope_of_branch(branch.internal_session_id)]
        is_sqlite = connection.dialect.name == "sqlite"
        rows = []
        # In the order of their checkpoints, so that a later checkpoint's texts have greater ids.
        for one in sorted(fresh, key=lambda one: one.number):
            marks = [*scope, NAMES] if one.kind == NAMED else scope
            found = [*marks, *(word.text for word in words(composed(one.text)))]
            rows.append(
                {
                    "tenant_id": self.tenant_id,
                    "id": new_id(),
                    "internal_session_id": branch.internal_session_id,
                    "number": one.number,
                    "kind": one.kind,
                    "hash": one.hash,
                    "row_id": one.row_id,
                    "words": " ".join(found) if is_sqlite else vector(found),
                }
            )
        if rows:
            _ADD.run(connection, *rows)
            if is_sqlite:
                _ADD_WORDS.run(connection, *rows)


def _state(row: StoredRow | None) -> str | None:
    """Return the graph checkpoint id of a checkpoint. Those after a turn and before the next one often share it."""
    return row.graph_checkpoint_id if row is not None else None


def _added(before: Sequence[bytes], now: Sequence[bytes]) -> list[bytes]:
    """List the hashes in `now` that are not in `before`."""
    kept = shared_prefix(before, now)
    if kept == len(before):
        return list(now[kept:])
    gone = set(before[kept:])
    return [key for key in now[kept:] if key not in gone]


def scope_of_session(session_id: int) -> str:
    """Return the marker word of all texts of a session."""
    return f"§s{session_id}"


def scope_of_branch(branch_id: int) -> str:
    """Return the marker word of all texts of a branch."""
    return f"§b{branch_id}"


def vector(found: Sequence[str]) -> str:
    """Format words as a PostgreSQL tsvector: each word with its positions.

    Example:
        >>> vector(["a", "b", "a"])
        "'a':1,3 'b':2"
    """
    places: dict[str, list[int]] = {}
    for place, word in enumerate(found, 1):
        places.setdefault(word, []).append(place)
    return " ".join(f"'{word}':{','.join(map(str, at[:256]))}" for word, at in places.items())


def forget_words(connection: Connection, tenant_id: int) -> None:
    """Delete all words of a tenant, so that the next search of each session indexes only what may be indexed now.

    On SQLite this deletes the words of every tenant, because an FTS5 table without stored texts cannot delete a part.
    """
    texts, branches = delete(SEARCH_TEXT), update(BRANCH).where(BRANCH.c.searched != 0)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO search_words(search_words) VALUES ('delete-all')")
    else:
        texts = texts.where(SEARCH_TEXT.c.tenant_id == tenant_id)
        branches = branches.where(BRANCH.c.tenant_id == tenant_id)
    connection.execute(texts)
    connection.execute(branches.values(searched=0))


# -- the text of each kind, as it is indexed and as it is shown


def text_of_message(value: Leaf) -> Text:
    """Return the searchable text of a message. For the answer of a tool, it begins with the tool's name."""
    stored = show_message(value)
    shown = from_stored(stored)
    name = stored["data"].get("name") if shown["role"] == "tool" else None
    text = text_of(shown)
    return Text(f"{name}: {text}" if name else text, role=shown["role"], name=name, id=shown["id"])


def text_of_call(row: StoredRow) -> Text:
    """Return the searchable text of a call: tool, arguments, its result if no message has it, and its error."""
    text = f"{row.tool_name}({plain(stored_json(row.args))})"
    if row.tool_call_id is None and row.result is not None:
        text += f" → {plain(stored_json(row.result))}"
    if row.error_message:
        text += f" ! {row.error_message}"
    return Text(text, name=row.tool_name, id=row.id)


def text_of_checkpoint(row: StoredRow) -> Text:
    """Return the searchable text of a checkpoint: its name, and the description that a person wrote."""
    own = None if row.is_auto else row.description
    return Text(" - ".join(filter(None, (row.name, own))), name=row.name)


# -- statements

_C = CHECKPOINT.c
_of_branch = (_C.tenant_id == bindparam("tenant"), _C.internal_session_id == bindparam("branch"))
_OF_BRANCH_TOO = ("thread_id", "searched", "inherited", "external_session_id", "parent_id", "branch_point_id")
_WITH_BRANCH = select(CHECKPOINT, *(BRANCH.c[name] for name in _OF_BRANCH_TOO)).join_from(
    CHECKPOINT, BRANCH, and_(BRANCH.c.tenant_id == _C.tenant_id, BRANCH.c.id == _C.internal_session_id)
)
# The last indexed checkpoint and the next ones. The branch is locked, because its reader then updates `searched`.
_NEXT = CompiledStatement(
    _WITH_BRANCH.where(*_of_branch, _C.number >= BRANCH.c.searched)
    .order_by(_C.number)
    .limit(CHECKPOINTS_AT_ONCE)
    .with_for_update(of=BRANCH, key_share=True)
)
_BY_ID = CompiledStatement(_WITH_BRANCH.where(_C.tenant_id == bindparam("tenant"), _C.id == bindparam("checkpoint")))
_BEHIND = CompiledStatement(
    select(BRANCH.c.id, BRANCH.c.searched, _C.number)
    .join_from(BRANCH, CHECKPOINT, and_(_C.tenant_id == BRANCH.c.tenant_id, _C.id == BRANCH.c.head_id))
    .where(
        BRANCH.c.tenant_id == bindparam("tenant"),
        BRANCH.c.external_session_id == bindparam("session"),
        _C.number > BRANCH.c.searched,
    )
    .order_by(BRANCH.c.id)
)
_MOVE = CompiledStatement(
    update(BRANCH)
    .where(BRANCH.c.tenant_id == bindparam("tenant"), BRANCH.c.id == bindparam("branch"))
    .values(searched=bindparam("now"))
)
_CALLS = CompiledStatement(
    select(TOOL_INVOCATION)
    .where(
        TOOL_INVOCATION.c.tenant_id == bindparam("tenant"),
        TOOL_INVOCATION.c.internal_session_id == bindparam("branch"),
        TOOL_INVOCATION.c.status != PAUSED,
        TOOL_INVOCATION.c.kind != REDO,
    )
    .order_by(TOOL_INVOCATION.c.arrival)
    .limit(bindparam("count"))
    .offset(bindparam("first"))
)
_OF_BRANCH = CompiledStatement(
    select(SEARCH_TEXT.c.hash, SEARCH_TEXT.c.row_id).where(
        SEARCH_TEXT.c.tenant_id == bindparam("tenant"), SEARCH_TEXT.c.internal_session_id == bindparam("branch")
    )
)
_WORDS = table("search_words", column("rowid"), column("words"))
_ADD_WORDS = CompiledStatement(insert(_WORDS).values(rowid=bindparam("id"), words=bindparam("words")))
_plain: dict[str, Any] = {c.name: bindparam(c.name) for c in SEARCH_TEXT.c if c.name != "words"}
_ADD = CompiledStatement(
    {
        "sqlite": insert(SEARCH_TEXT).values(_plain),
        "postgresql": insert(SEARCH_TEXT).values({**_plain, "words": cast(bindparam("words"), TSVECTOR)}),
    }
)
