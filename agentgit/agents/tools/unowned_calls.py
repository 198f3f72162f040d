"""Calls of tools in threads that no turn owns.

A thread has a context of its own, so a call in a thread that a node has started does not lead to the turn of the node.
Nor can it be attached to one: the thread may be a stranger's. The call runs as plain code. Each turn whose graph has
the tool, and that ran when the call or its thread began, records how often that happened; a plan and a report name it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from langchain_core.tools import BaseTool

from agentgit.agents.isolation import is_detached
from agentgit.agents.tools.late_threads import ThreadsDuring
from agentgit.agents.turn.calls import Calls
from agentgit.effects.invocation import DONE, TIMES, UNOWNED
from agentgit.effects.kinds import UNDECLARED, kind_of
from agentgit.errors import Fenced, NotFound, UnownedCall, warn_caller
from agentgit.next_steps import Next
from agentgit.rollback.verification import IN_OPERATION
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.sql.transaction import Writing
from agentgit.values import to_json

REPORT, REFUSE = "report", "refuse"
"""The values of `wrap(unowned_calls=...)`."""

SHARE_CONTEXT = (
    "Start the thread with contextvars.copy_context().run, or use asyncio.to_thread, so that its calls belong to the "
    "turn"
)


@dataclass(eq=False)
class _Watch:
    """A turn that runs, or whose threads have outlived it."""

    calls: Calls
    threads: ThreadsDuring = field(default_factory=ThreadsDuring)
    is_running: bool = True
    rows: dict[str, tuple[Intent, int | None]] = field(default_factory=dict)
    """The record of the calls of each tool, and the newest checkpoint of the branch then."""

    def may_own(self, thread: threading.Thread) -> bool:
        """Return whether the turn runs now, or its threads may have started one."""
        return self.is_running or self.threads.origin_of(thread) is not None


_watches: list[_Watch] = []
_lock = threading.Lock()


@contextmanager
def watching(calls: Calls) -> Iterator[None]:
    """Count the calls in threads that no turn owns for a turn that runs in the block, and for its threads later."""
    watch = _Watch(calls)
    with _lock:
        _watches.append(watch)
    try:
        yield
    finally:
        with _lock:
            watch.threads.end()
            watch.is_running = False
            _watches[:] = [one for one in _watches if one.is_running or one.threads.are_alive]


def note_unowned_call(tool: BaseTool) -> None:
    """Record a call that leads to no turn for each turn that it may come from, or refuse it."""
    if not _watches or is_detached() or IN_OPERATION.get():
        return
    thread = threading.current_thread()
    with _lock:
        found = [(one, one.calls.effects.find(tool)) for one in _watches if one.may_own(thread)]
        declared = [(watch, declaration) for watch, declaration in found if declaration is not None]
        for watch, declaration in declared:
            kind = declaration.effect.kind if declaration.effect is not None else UNDECLARED
            if watch.calls.turn.context.settings.unowned_calls == REFUSE and kind_of(kind).leaves_trace:
                raise Fenced(
                    f"{tool.name} was called in a thread that no turn owns, so it was not run. {SHARE_CONTEXT}.",
                    Next("report_unowned"),
                )
    if declared:  # a filter that makes the warning an error keeps the call from running
        text = f"{tool.name} was called in a thread that no turn owns, and is not recorded. {SHARE_CONTEXT}."
        warn_caller(UnownedCall(text))
    with _lock:
        for watch, _ in declared:
            database = watch.calls.turn.context.store.database
            if not database.is_closed:  # else the turn, and who could be told, are gone
                with suppress(NotFound):  # so are those of a deleted session
                    database.write(partial(_record, watch, tool.name), durable=True)


def _record(watch: _Watch, tool_name: str, transaction: Writing) -> None:
    calls, store = watch.calls, watch.calls.turn.context.store
    branch = store.sessions.branch(transaction, calls.branch.id)  # it may have been deleted
    store.sessions.lock(transaction, branch.external_session_id)
    known, head_id = watch.rows.get(tool_name, (None, None))
    batch, now = store.journal.tally(transaction, calls.branch.id).next_batch, datetime.now(UTC)
    # After the turn, a row counts the calls up to the next checkpoint.
    if known is not None and (watch.is_running or (known.batch + 1, head_id) == (batch, branch.head_id)):
        known = replace(known, args={TIMES: known.args[TIMES] + 1})
        store.journal.change(transaction, known.id, args=to_json(known.args))
        watch.rows[tool_name] = known, head_id
        return
    intent = Intent(
        session_id=calls.branch.external_session_id,
        branch_id=calls.branch.id,
        batch=batch,
        batch_index=0,
        tool_name=tool_name,
        tool_call_id=None,
        effect=UNDECLARED,
        undo=None,
        args={TIMES: 1},
        idempotency_key="",
        owner=calls.owner,
        started_at=now,
        kind=UNOWNED,
    )
    store.journal.intend(transaction, intent)
    store.journal.end(transaction, intent.id, CallOutcome(status=DONE, ended_at=now))
    watch.rows[tool_name] = intent, branch.head_id
