"""Conflicts of memory: writes that are not undone or made again, because the item has another value by now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from agentgit.effects import RollbackPlan, ToolInvocation
from agentgit.effects.kinds import MEMORY
from agentgit.effects.memory import ItemName, Memory, MemoryWrite, is_same, item_identity, lock_name
from agentgit.effects.plan import REDO, REVERSE, Stays
from agentgit.effects.registry import Registry
from agentgit.errors import NotFound
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.values import describe_error

MAX_NAMES = 3
"""The maximum number of sessions that a conflict names."""


class MemoryConflicts:
    """Compares what the sessions wrote to memory with what is there now."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry

    @contextmanager
    def lock(self, session_id: int, call: ToolInvocation) -> Iterator[None]:
        """Keep others from writing the item of a call until the block ends. Without a store here, there is no item."""
        try:
            store_name = self.registry.memory(session_id).name if call.effect == MEMORY else None
        except NotFound:
            store_name = None
        if store_name is None:
            yield
            return
        with self.store.database.named_locks.hold([lock_name(store_name, MemoryWrite.of(call).item)]):
            yield

    def find(self, session_id: int, call: ToolInvocation, action: str) -> str | None:
        """Return why a write to memory cannot be undone, or made again, now; None if it can, and for other calls."""
        return self._find_all(session_id, [(call, action)]).get(call.id)

    def find_in_plan(self, session_id: int, plan: RollbackPlan) -> dict[int, str]:
        """Return the conflicts of a plan by the id of the call, as they are after the steps before each."""
        steps = [(step.invocation, step.action) for step in plan.steps if step.action in (REVERSE, REDO)]
        return self._find_all(session_id, steps)

    def _find_all(self, session_id: int, steps: Iterable[tuple[ToolInvocation, str]]) -> dict[int, str]:
        writes = [(call, action) for call, action in steps if call.effect == MEMORY]
        if not writes:
            return {}
        try:
            memory = self.registry.memory(session_id)
        except NotFound:
            return {}  # the plan says so anyway
        items = dict.fromkeys(MemoryWrite.of(call).item for call, _ in writes)
        values = {item: _read(memory, item) for item in items}  # before a transaction is open
        conflicts: dict[int, str] = {}
        with self.store.database.reading() as transaction:
            for call, action in writes:
                conflict = self._conflict(transaction, session_id, call, action, values)
                if conflict is not None:
                    conflicts[call.id] = conflict
        return conflicts

    def _conflict(
        self, transaction: Reading, session_id: int, call: ToolInvocation, action: str, values: dict[ItemName, Any]
    ) -> str | None:
        """Return the conflict of a write; if there is none, set the value that its item then has."""
        write = MemoryWrite.of(call)
        current = values[write.item]
        if isinstance(current, _Unreadable):
            return current
        if action == REVERSE:
            conflict = write.undo_conflict(current)
        else:
            # An imported write was made in another memory, whose value before need not be in this one.
            is_new_here = call.is_imported and current is None
            conflict = (replace(write, before=None) if is_new_here else write).redo_conflict(current)
        target = write.before if action == REVERSE else write.value
        if is_same(current, target):
            return None
        writers = "" if call.is_imported else self._describe_writers(transaction, session_id, call)
        if conflict is None and action == REVERSE and writers:
            conflict = "the item was written since"
        if conflict is not None:
            return Stays(f"{conflict}{f' by {writers}' if writers else ''}, so it stays as it is")
        values[write.item] = target
        return None

    def adapted(self, session_id: int, call: ToolInvocation) -> ToolInvocation:
        """Return a write to be made again as one to the store here, with its value before if it was another."""
        if call.effect != MEMORY:
            return call
        memory = self.registry.memory(session_id)
        before = {"before": memory.read(MemoryWrite.of(call).item)} if call.is_imported else {}
        return replace(call, args={**call.args, **before}, identity=item_identity(memory.name, call.args))

    def _describe_writers(self, transaction: Reading, session_id: int, call: ToolInvocation) -> str:
        """Name the other sessions that wrote the item of a call since; those of other users without their names."""
        ids = self.store.recorded_calls.later_writers(transaction, session_id, call.identity or "", call.id)
        if not ids:
            return ""
        own_user_id = self.store.sessions.load_row(transaction, session_id).user_id
        rows = [self.store.sessions.load_row(transaction, id) for id in ids[:MAX_NAMES]]
        names = [
            f"session {row.session_name!r}" if row.user_id == own_user_id else "a session of another user"
            for row in rows
        ]
        return " and ".join(dict.fromkeys([*names, *(["others"] if len(ids) > MAX_NAMES else [])]))


class _Unreadable(str):
    """The reason why an item cannot be read."""


def _read(memory: Memory, item: ItemName) -> Any:
    """Return the value of an item, or why it cannot be read."""
    try:
        return memory.read(item)
    except Exception as error:  # noqa: BLE001  # whatever a store raises is a reason not to write to it
        return _Unreadable(f"its store cannot be read: {describe_error(error)}")
