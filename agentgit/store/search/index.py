"""The search index: texts and their words, which a search of a session brings up to date before it reads them.

Each branch stores the number of its last indexed checkpoint. Later checkpoints are indexed once: the messages that the
previous checkpoint did not have, the calls since then, and the checkpoint's own name. A fork has no texts of its own,
so it costs nothing. Turns index nothing, because most sessions are never searched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import Text, bindparam, cast, column, delete, insert, select, table, text, update
from sqlalchemy.dialects.postgresql import TSVECTOR

from agentgit.checkpoints.queries import SearchableText, format_words
from agentgit.checkpoints.search_words import folded_words, normalize_nfc
from agentgit.effects.invocation import PAUSED, REDO
from agentgit.errors import Corrupt
from agentgit.sessions.messages import from_stored, text_of
from agentgit.store.objects.blobs import Blobs, Leaf, shared_prefix
from agentgit.store.objects.plain_values import CUSTOM_SERDE, show_message
from agentgit.store.records.checkpoints import CHECKPOINT_WITH_BRANCH
from agentgit.store.records.sessions import SessionStore, StoredRow
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import BRANCH, CALL, CHECKPOINT, MESSAGE, NAMED, SEARCH_TEXT, TOOL_INVOCATION
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.graph_store import GraphStore
from agentgit.values import UNREADABLE, stored_json

NAMED_MARKER = "§n"
"""The marker word of all texts that people wrote at checkpoints. No word of a text contains `§`."""

CHECKPOINTS_PER_TRANSACTION = 200
"""The maximum number of checkpoints that one transaction indexes, so that other writers do not wait long."""


class NewText(NamedTuple):
    """A text to index: its source, and the number of the first checkpoint that holds it."""

    number: int
    kind: str
    text: str
    hash: bytes | None = None
    row_id: int | None = None


class SearchIndex:
    def __init__(self, sessions: SessionStore, graphs: GraphStore, *, names_only: bool = False) -> None:
        self.names_only = names_only
        self.sessions = sessions
        self.graphs = graphs

    def count_unindexed(self, transaction: Reading, session_id: int) -> int:
        """Return an upper limit of the number of checkpoints of a session that are not indexed."""
        return sum(row.number - row.searched for row in _UNINDEXED.all(transaction, {"session": session_id}))

    def index_next(self, transaction: Writing, session_id: int) -> int:
        """Index the texts of a session's next checkpoints in the order in which they were made; return their number."""
        checkpoints = _NEXT.all(transaction, {"session": session_id})
        by_branch: dict[int, list[StoredRow]] = defaultdict(list)
        for row in checkpoints:
            by_branch[row.internal_session_id].append(row)
        new_texts = [
            (next(row.id for row in rows if row.number >= one.number), branch_id, one)
            for branch_id, rows in by_branch.items()
            for one in self._find_new_texts(transaction, rows)  # first, because damaged data raises here
        ]
        for branch_id, rows in by_branch.items():
            _SET_SEARCHED.run(transaction, {"branch": branch_id, "now": rows[-1].number})
        new_texts.sort(key=lambda one: one[0])
        self._add(transaction, session_id, [(branch_id, one) for _, branch_id, one in new_texts])
        return len(checkpoints)

    def index_annotation(self, transaction: Writing, row: StoredRow) -> None:
        """Index the name and description of a checkpoint again, after a change."""
        transaction.execute(
            delete(SEARCH_TEXT).where(
                SEARCH_TEXT.c.internal_session_id == row.internal_session_id,
                SEARCH_TEXT.c.kind == NAMED,
                SEARCH_TEXT.c.row_id == row.id,
            )
        )
        branch = self.sessions.branch(transaction, row.internal_session_id)
        if row.number > branch.searched:
            return  # it is indexed later, with the checkpoints before it
        text = row.name if self.names_only else _annotation(row)
        if text:
            new_text = NewText(row.number, NAMED, text, row_id=row.id)
            self._add(transaction, branch.external_session_id, [(branch.id, new_text)])

    # -- what is new

    def _find_new_texts(self, transaction: Reading, unindexed: Sequence[StoredRow]) -> Iterator[NewText]:
        if self.names_only:
            yield from (NewText(row.number, NAMED, row.name, row_id=row.id) for row in unindexed if row.name)
            return
        branch, previous = unindexed[0], self._previous_checkpoint(transaction, unindexed[0])
        # The last indexed checkpoint may have been deleted. Then new texts are compared with those in the index, too.
        is_known = previous is not None and previous.internal_session_id == branch.internal_session_id
        is_compared = branch.searched and not is_known
        texts = _TEXTS_OF_BRANCH.all(transaction, {"branch": branch.internal_session_id}) if is_compared else ()
        indexed_keys = {row.hash or row.row_id for row in texts}
        hashes_by_state = self._message_hashes(transaction, [row for row in (previous, *unindexed) if row is not None])
        last_hashes, last_state = hashes_by_state[_state_id(previous)], _state_id(previous)
        new_messages: list[tuple[int, bytes]] = []
        call_counts: list[tuple[int, int]] = []
        for row in unindexed:
            if annotation := _annotation(row):
                yield NewText(row.number, NAMED, annotation, row_id=row.id)
            if _state_id(row) != last_state:
                hashes = hashes_by_state[_state_id(row)]
                new_messages += [
                    (row.number, key) for key in _added_hashes(last_hashes, hashes) if key not in indexed_keys
                ]
                last_hashes, last_state = hashes, _state_id(row)
            call_counts.append((row.position - branch.inherited, row.number))
        first_call = previous.position - branch.inherited if previous is not None and is_known else 0
        yield from self._find_new_calls(
            transaction, branch.internal_session_id, max(0, first_call), call_counts, indexed_keys
        )
        yield from self._load_messages(transaction, branch.external_session_id, new_messages)

    def _load_messages(
        self, transaction: Reading, session_id: int, new_messages: Sequence[tuple[int, bytes]]
    ) -> Iterator[NewText]:
        """Yield the texts of messages, each given as the number of its first checkpoint and its hash."""
        leaves = undamaged_messages(transaction, self.graphs.blobs.of(session_id), [key for _, key in new_messages])
        for number, key in new_messages:
            if key in leaves and leaves[key].type != CUSTOM_SERDE:
                words = ""
                with suppress(Corrupt, *UNREADABLE):
                    words = text_of_message(leaves[key]).text
                yield NewText(number, MESSAGE, words, hash=key)

    def _previous_checkpoint(self, transaction: Reading, first_row: StoredRow) -> StoredRow | None:
        """Return the last indexed checkpoint or, if it is unknown, the branch point; None if there is none."""
        parameters = {"branch": first_row.internal_session_id, "number": first_row.searched}
        last = _BY_NUMBER.first(transaction, parameters) if first_row.searched else None
        if last is not None or first_row.parent_id is None:
            return last
        return _BY_ID.first(transaction, {"checkpoint": first_row.branch_point_id})

    def _message_hashes(self, transaction: Reading, rows: Iterable[StoredRow]) -> dict[str | None, Sequence[bytes]]:
        """Return the message hashes of checkpoints by graph checkpoint id; empty if the graph checkpoint is gone."""
        pending = {
            row.graph_checkpoint_id: self.graphs.prefetch(
                transaction, GraphKey(row.thread_id, "", row.graph_checkpoint_id)
            )
            for row in rows
            if row.graph_checkpoint_id is not None and row.message_count
        }
        hashes: dict[str | None, Sequence[bytes]] = defaultdict(tuple)
        for state_id, read_result in pending.items():
            graph_checkpoint = read_result()
            hashes[state_id] = (
                self.graphs.message_hashes(transaction, graph_checkpoint) if graph_checkpoint is not None else ()
            )
        return hashes

    def _find_new_calls(
        self,
        transaction: Reading,
        branch_id: int,
        first_call: int,
        call_counts: Sequence[tuple[int, int]],
        indexed_keys: set[Any],
    ) -> Iterator[NewText]:
        """Yield the calls that a branch made itself, each with the first checkpoint made after it."""
        last_count = max(count for count, _ in call_counts)
        if last_count <= first_call:
            return
        parameters = {"branch": branch_id, "first": first_call, "count": last_count - first_call}
        for index, row in enumerate(_CALLS.all(transaction, parameters), first_call):
            number = next((number for count, number in call_counts if count > index), None)
            if number is not None and row.id not in indexed_keys:
                yield NewText(number, CALL, text_of_call(row).text, row_id=row.id)

    # -- words

    def _add(self, transaction: Writing, session_id: int, new_texts: Iterable[tuple[int, NewText]]) -> None:
        """Add texts, each with its branch, in the order in which a search returns the newest first."""
        scope_markers = [scope_of_session(session_id)]
        is_sqlite = transaction.is_sqlite
        rows = []
        for branch_id, new_text in new_texts:
            markers = [*scope_markers, NAMED_MARKER] if new_text.kind == NAMED else scope_markers
            marked_words = [*markers, *folded_words(normalize_nfc(new_text.text))]
            words = " ".join(marked_words) if is_sqlite else ts_vector(marked_words)
            rows.append({"id": new_id(), "internal_session_id": branch_id, **new_text._asdict(), "words": words})
        if rows:
            _ADD.run(transaction, *rows)
            if is_sqlite:
                _ADD_WORDS.run(transaction, *rows)


def _annotation(row: StoredRow) -> str:
    """Return the text that a person wrote about a checkpoint; empty if there is none."""
    return text_of_checkpoint(row).text if row.name or not row.is_auto else ""


def _state_id(row: StoredRow | None) -> str | None:
    """Return the graph checkpoint id of a checkpoint. Those after a turn and before the next one often share it."""
    return row.graph_checkpoint_id if row is not None else None


def _added_hashes(before: Sequence[bytes], after: Sequence[bytes]) -> list[bytes]:
    """List the hashes in `after` that are not in `before`."""
    prefix_length = shared_prefix(before, after)
    if prefix_length == len(before):
        return list(after[prefix_length:])
    removed = set(before[prefix_length:])
    return [key for key in after[prefix_length:] if key not in removed]


def scope_of_session(session_id: int) -> str:
    return f"§s{session_id}"


def ts_vector(words_in_order: Sequence[str]) -> str:
    """Format words as a PostgreSQL tsvector: each word with its positions."""
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(words_in_order, 1):
        positions.setdefault(word, []).append(position)
    return " ".join(
        f"'{word}':{','.join(map(str, word_positions[:256]))}" for word, word_positions in positions.items()
    )


def delete_words(transaction: Writing) -> None:
    """Delete all words, so that the next search of each session indexes only what may be indexed now."""
    if transaction.is_sqlite:
        transaction.execute(text("INSERT INTO search_words(search_words) VALUES ('delete-all')"))
    transaction.execute(delete(SEARCH_TEXT))
    transaction.execute(update(BRANCH).where(BRANCH.c.searched != 0).values(searched=0))


def undamaged_messages(transaction: Reading, blobs: Blobs, keys: Sequence[bytes]) -> dict[bytes, Leaf]:
    """Read messages together. A damaged one must not keep the others from being found."""
    try:
        return blobs.get_many(transaction, keys)
    except Corrupt:
        leaves: dict[bytes, Leaf] = {}
        for key in keys:
            with suppress(Corrupt):
                leaves |= blobs.get_many(transaction, [key])
        return leaves


# -- the text of each kind, as it is indexed and as it is shown


def text_of_message(leaf: Leaf) -> SearchableText:
    """Return the searchable text of a message. For the answer of a tool, it begins with the tool's name."""
    stored = show_message(leaf)
    message = from_stored(stored)
    name = stored["data"].get("name") if message["role"] == "tool" else None
    text = text_of(message)
    return SearchableText(f"{name}: {text}" if name else text, role=message["role"], name=name, id=message["id"])


def text_of_call(row: StoredRow) -> SearchableText:
    """Return the searchable text of a call: tool, arguments, its result if no message has it, and its error."""
    text = f"{row.tool_name}({format_words(stored_json(row.args))})"
    if row.tool_call_id is None and row.result is not None:
        text += f" → {format_words(stored_json(row.result))}"
    if row.error_message:
        text += f" ! {row.error_message}"
    return SearchableText(text, name=row.tool_name, id=row.id)


def text_of_checkpoint(row: StoredRow) -> SearchableText:
    """Return the name and description of a checkpoint, without one that agentgit wrote, which repeats a message."""
    description = None if row.is_auto and not row.name else row.description
    return SearchableText(" - ".join(filter(None, (row.name, description))), name=row.name)


# -- statements

_C = CHECKPOINT.c
_BRANCH_COLUMNS = ("searched", "inherited", "parent_id", "branch_point_id")
_WITH_BRANCH = CHECKPOINT_WITH_BRANCH.add_columns(*(BRANCH.c[name] for name in _BRANCH_COLUMNS))
# The branches are locked, because the reader then updates `searched`.
_NEXT = CompiledStatement(
    _WITH_BRANCH.where(BRANCH.c.external_session_id == bindparam("session"), _C.number > BRANCH.c.searched)
    .order_by(_C.id)
    .limit(CHECKPOINTS_PER_TRANSACTION)
    .with_for_update(of=BRANCH, key_share=True)
)
_BY_NUMBER = CompiledStatement(
    _WITH_BRANCH.where(_C.internal_session_id == bindparam("branch"), _C.number == bindparam("number"))
)
_BY_ID = CompiledStatement(_WITH_BRANCH.where(_C.id == bindparam("checkpoint")))
_UNINDEXED = CompiledStatement(
    select(BRANCH.c.id, BRANCH.c.searched, _C.number)
    .join_from(BRANCH, CHECKPOINT, _C.id == BRANCH.c.head_id)
    .where(BRANCH.c.external_session_id == bindparam("session"), _C.number > BRANCH.c.searched)
    .order_by(BRANCH.c.id)
)
_SET_SEARCHED = CompiledStatement(
    update(BRANCH).where(BRANCH.c.id == bindparam("branch")).values(searched=bindparam("now"))
)
_CALLS = CompiledStatement(
    select(TOOL_INVOCATION)
    .where(
        TOOL_INVOCATION.c.internal_session_id == bindparam("branch"),
        TOOL_INVOCATION.c.status != PAUSED,
        TOOL_INVOCATION.c.kind != REDO,
    )
    .order_by(TOOL_INVOCATION.c.arrival)
    .limit(bindparam("count"))
    .offset(bindparam("first"))
)
_TEXTS_OF_BRANCH = CompiledStatement(
    select(SEARCH_TEXT.c.hash, SEARCH_TEXT.c.row_id).where(SEARCH_TEXT.c.internal_session_id == bindparam("branch"))
)
_WORDS = table("search_words", column("rowid"), column("words"))
_ADD_WORDS = CompiledStatement(insert(_WORDS).values(rowid=bindparam("id"), words=bindparam("words")))
_values_without_words: dict[str, Any] = {c.name: bindparam(c.name) for c in SEARCH_TEXT.c if c.name != "words"}
_ADD = CompiledStatement(
    {
        "sqlite": insert(SEARCH_TEXT).values(_values_without_words),
        "postgresql": insert(SEARCH_TEXT).values(
            {**_values_without_words, "words": cast(bindparam("words", type_=Text), TSVECTOR)}
        ),
    }
)
