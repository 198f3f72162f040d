"""The last step of an import: a thread that was read and checked becomes a branch of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from agentgit.agents.importing.history import HistoryReader, ImportedCall, ImportedHistory
from agentgit.auth.principal import WRITE
from agentgit.effects.invocation import DONE
from agentgit.effects.kinds import UNDECLARED
from agentgit.errors import Conflict
from agentgit.handles.context import Context
from agentgit.handles.templates import require_name
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import record_event
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.records.json_columns import read_meta
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT, SESSION
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads import staging
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.staging import IMPORTED_FROM_KEY
from agentgit.values import portable

OWNER = "import"


@dataclass(frozen=True, kw_only=True)
class EarlierImport:
    """The result of an earlier import of a thread."""

    session_id: int
    branch_id: int
    branch_thread_id: str
    newest_id: str
    call_count: int
    has_moved: bool


@dataclass(frozen=True, kw_only=True)
class ImportedCounts:
    """The number of checkpoints and tool calls that were added to a session."""

    checkpoints: int
    calls: int


class ImportCommit:
    """The conversion of one thread into a session."""

    def __init__(self, context: Context, session_name: str, thread_id: str) -> None:
        require_name(session_name)
        self.store = context.store
        self.user_id = context.user.id
        self.lookup = context.lookup
        self.session_name = session_name
        self.thread_id = thread_id

    def find(self) -> EarlierImport | None:
        """Find an earlier import of the thread; return None if the session does not exist or is empty."""
        with self.store.database.reading() as transaction:
            return self._find_earlier_import(transaction, self._find_session(transaction))

    def _find_session(self, transaction: Reading) -> int | None:
        self.lookup.require_scope(transaction, WRITE)
        rows = self.store.visible_sessions.own(
            transaction, self.user_id, SESSION.c.session_name == self.session_name, limit=1
        )
        return rows[0].id if rows else None

    def _find_earlier_import(self, transaction: Reading, session_id: int | None) -> EarlierImport | None:
        branches = self.store.sessions.branches(transaction, session_id) if session_id is not None else []
        for row in branches:
            facts = read_meta(row).get(IMPORTED_FROM_KEY)
            if facts is not None and facts["thread_id"] == self.thread_id:
                newest = self.store.graphs.newest(transaction, row.thread_id)
                return EarlierImport(
                    session_id=row.external_session_id,
                    branch_id=row.id,
                    branch_thread_id=row.thread_id,
                    newest_id=facts["newest"],
                    call_count=facts["calls"],
                    has_moved=newest is None or newest.key.checkpoint_id != facts["newest"],
                )
        if len(branches) > 1 or any(not self._is_empty(transaction, row) for row in branches):
            raise Conflict(
                f"Session {self.session_name!r} already exists and was not imported from thread {self.thread_id!r}. "
                "Import the thread under another session name."
            )
        return None

    def _is_empty(self, transaction: Reading, row: StoredRow) -> bool:
        return row.head_id is None and self.store.graphs.newest(transaction, row.thread_id) is None

    def conflict_error(self) -> Conflict:
        """Return the error for staged rows that another import of the same thread has removed."""
        return Conflict(
            f"Thread {self.thread_id!r} was not imported: some of the graph checkpoints that were read have been "
            "removed. Is another import of it running? Import it again when that has ended."
        )

    def commit(
        self, staging_thread: str, added_count: int, roots: Sequence[str], earlier: EarlierImport | None
    ) -> ImportedCounts:
        with self.store.database.reading() as transaction:
            branch_parents = staging.checkpoint_parents(transaction, earlier.branch_thread_id) if earlier else {}
            line = [
                GraphKey(earlier.branch_thread_id if earlier and ("", id) in branch_parents else staging_thread, "", id)
                for id in roots
            ]
            history = HistoryReader(self.store, self.user_id).read(transaction, line)
        if history is None:
            raise self.conflict_error()
        return self.store.database.write(
            lambda transaction: self._land(transaction, staging_thread, added_count, roots, earlier, history),
            durable=True,
        )

    def _land(
        self,
        transaction: Writing,
        staging_thread: str,
        added_count: int,
        roots: Sequence[str],
        earlier: EarlierImport | None,
        history: ImportedHistory,
    ) -> ImportedCounts:
        session_id = self._find_session(transaction)
        if session_id is not None:
            self.store.sessions.lock(transaction, session_id)  # before the check, so that no turn begins after it
        if self._find_earlier_import(transaction, session_id) != earlier:
            raise Conflict(
                f"Session {self.session_name!r} changed while thread {self.thread_id!r} was read. Try again."
            )
        if session_id is None:
            session_id = self.store.sessions.create(transaction, self.user_id, self.session_name)
        branch = self._branch(transaction, session_id, earlier)
        blobs = self.store.graphs.blobs
        if staging.move(transaction, blobs, staging_thread, branch.thread_id, session_id) != added_count:
            raise self.conflict_error()
        calls = self._add_calls(transaction, branch, history)
        checkpoints = self._add_points(transaction, branch, history, roots, earlier)
        facts = {"thread_id": self.thread_id, "newest": roots[-1], "calls": len(history.calls)}
        self.store.sessions.merge_metadata(transaction, branch.id, {IMPORTED_FROM_KEY: facts})
        self.store.sessions.touch(transaction, branch)
        record_event(
            transaction,
            "session.imported",
            branch_id=branch.id,
            user_id=self.user_id,
            thread=self.thread_id,
            checkpoints=checkpoints,
            calls=calls,
        )
        return ImportedCounts(checkpoints=checkpoints, calls=calls)

    def _branch(self, transaction: Writing, session_id: int, earlier: EarlierImport | None) -> StoredRow:
        branches = self.store.sessions.branches(transaction, session_id)
        branch = next(row for row in branches if earlier is None or row.id == earlier.branch_id)
        branch = self.store.recover(transaction, branch)
        if branch.status == RUNNING:
            raise Conflict(
                f"Session {self.session_name!r} is running. Import its thread again when its turn has ended."
            )
        return branch

    def _add_calls(self, transaction: Writing, branch: StoredRow, history: ImportedHistory) -> int:
        """Add the missing calls to the track; calls of an unfinished batch may have been imported out of order."""
        batches: dict[int, int] = {}
        for call in history.calls:
            batches.setdefault(call.message, len(batches))
        known_counts = Counter(one.tool_call_id for one in self.store.track(transaction, branch))
        added_count = 0
        for call in history.calls:
            if known_counts[call.id]:
                known_counts[call.id] -= 1
                continue
            intent, outcome = self._call_record(branch, call, batches[call.message])
            invocation_id = self.store.journal.intend(transaction, intent)
            self.store.journal.end(transaction, invocation_id, outcome, is_past=True)
            added_count += 1
        return added_count

    def _call_record(self, branch: StoredRow, call: ImportedCall, batch: int) -> tuple[Intent, CallOutcome]:
        key = sha256(f"{branch.id}\0{call.id}\0{call.name}\0{batch}".encode(errors="surrogatepass")).hexdigest()[:32]
        intent = Intent(
            session_id=branch.external_session_id,
            branch_id=branch.id,
            batch=batch,
            batch_index=call.index,
            tool_name=call.name,
            tool_call_id=call.id,
            effect=UNDECLARED,
            undo=None,
            args=portable(dict(call.args)),
            idempotency_key=key,
            owner=OWNER,
            started_at=call.requested_at,
        )
        if call.status == DONE:
            return intent, CallOutcome(status=DONE, result=portable(call.answer), ended_at=call.answered_at)
        return intent, CallOutcome(status=call.status, error=str(call.answer), ended_at=call.answered_at)

    def _add_points(
        self,
        transaction: Writing,
        branch: StoredRow,
        history: ImportedHistory,
        roots: Sequence[str],
        earlier: EarlierImport | None,
    ) -> int:
        """Create the checkpoints that are missing; older ones that a user has deleted are not created again."""
        first_index = roots.index(earlier.newest_id) if earlier else -1
        rows = self.store.checkpoints.find(transaction, CHECKPOINT.c.internal_session_id == branch.id)
        existing: set[tuple[Any, ...]] = {(row.kind, row.graph_checkpoint_id) for row in rows}
        points = [
            point
            for point in history.points
            if point.index >= first_index and (point.label.kind, point.snapshot.graph_checkpoint_id) not in existing
        ]
        for point in points:
            self.store.checkpoints.add(transaction, branch.id, point.snapshot, point.label, is_imported=True)
        return len(points)
