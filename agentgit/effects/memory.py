"""Long-term memory: writes to a LangGraph store, as calls of two built-in tools, and when they can be undone. Pure.

Memory is shared by sessions. A write is undone only while the value is the one that it wrote; otherwise it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from agentgit.effects.effects import Effect
from agentgit.effects.invocation import UNKNOWN, ToolInvocation, identity
from agentgit.effects.kinds import IDEMPOTENT, MEMORY, READ_ONLY
from agentgit.errors import InvalidInput

PUT, DELETE = "memory.put", "memory.delete"
MEMORY_TOOLS = frozenset({PUT, DELETE})
"""The names of the tools whose calls are the writes to memory."""

DECLARABLE = (READ_ONLY, IDEMPOTENT)
"""The effects that a user may declare for the two tools: the writes are recorded, and a rollback leaves them."""

ITEM_ARGS = ("namespace", "key")
"""The arguments that name an item."""

INEXACT_REASON = "has types that JSON does not have, so the record cannot restore it"

ItemName = tuple[tuple[str, ...], str]
"""The namespace and the key of an item."""


@dataclass(frozen=True)
class MemoryEffect(Effect):
    """The effect of `memory.put` and `memory.delete`, unless `effects={...}` says otherwise. No tool can declare it."""

    kind: str = MEMORY
    identity_args: Sequence[str] | None = ITEM_ARGS
    store: str = ""

    def __post_init__(self) -> None:
        pass


class Memory(Protocol):
    """A store, as a rollback uses it. Values are JSON-like, as the record has them."""

    @property
    def name(self) -> str:
        """Its name; empty if its items are known by namespace and key alone."""

    def read(self, item: ItemName) -> Any:
        """Return the value of an item; None if there is none."""

    def write(self, item: ItemName, value: Any, options: Mapping[str, Any]) -> None:
        """Put or, with None, delete an item; `options` are further arguments of `put`."""


@dataclass(frozen=True)
class MemoryWrite:
    """One write to memory."""

    item: ItemName
    value: Any
    before: Any
    is_value_exact: bool = True
    is_before_exact: bool = True

    @classmethod
    def of(cls, call: ToolInvocation) -> Self:
        """Return the write that a call of one of the two tools made."""
        args = call.args
        return cls(
            (tuple(args["namespace"]), args["key"]),
            args.get("value") if call.result is None else call.result,
            args["before"],
            args.get("value_exact", True),
            args.get("before_exact", True),
        )

    def undo_conflict(self, current: Any) -> str | None:
        """Return why the write is not undone, given the current value; None if it can be."""
        if is_same(current, self.before):
            return None  # it was already undone, or wrote the same value
        if not is_same(current, self.value):
            return "the item was deleted since, or has expired" if current is None else "the item was changed since"
        return None if self.is_before_exact else f"the value before it {INEXACT_REASON}"

    def redo_conflict(self, current: Any) -> str | None:
        """Return why the write is not made again, given the current value; None if it can be."""
        if not is_same(current, self.before) and not is_same(current, self.value):
            return "the item was changed since"
        return None if self.is_value_exact else f"its value {INEXACT_REASON}"

    @property
    def undo_reason(self) -> str:
        """The result of undoing the write, for a plan."""
        if is_same(self.before, self.value):
            return "there is nothing to change: it left the item as it was"
        return "the item is deleted again" if self.before is None else "the value before it is written back"


def require_declarable(effects: Mapping[str, Effect]) -> None:
    """Check the effects that a user declares for the two tools."""
    for name in sorted(MEMORY_TOOLS & set(effects)):
        if effects[name].kind not in DECLARABLE:
            raise InvalidInput(
                f"effects={{{name!r}: ...}} must be 'idempotent' or 'read_only', which leave memory as it is in a "
                "rollback. Leave it out to have its writes undone."
            )


def names_item(args: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a recorded write name an item and have the value before it."""
    namespace = args.get("namespace")
    has_names = isinstance(namespace, list) and all(isinstance(name, str | int) for name in namespace)
    return has_names and isinstance(args.get("key"), str) and "before" in args


def is_same(value: Any, other: Any) -> bool:
    """Return whether two JSON-like values are the same as JSON: 1 and 1.0 are, 1 and True are not."""
    return bool(value == other) and identity("", {"": value}, None) == identity("", {"": other}, None)


def item_identity(store: str, args: Mapping[str, Any]) -> str:
    """Return a hash that is the same for all writes to one item of a store."""
    return identity(f"memory {store}".rstrip(), args, ITEM_ARGS)


def lock_name(store: str, item: ItemName) -> str:
    """Return the name of the lock that is held while an item of a store is read, compared and written."""
    namespace, key = item
    return "\0".join(map(str, ("memory", store, *namespace, key)))


def may_be_written(memory: Memory, call: ToolInvocation) -> bool:
    """Return whether the value that a call wrote may be in memory."""
    write = MemoryWrite.of(call)
    current = memory.read(write.item)
    if is_same(current, write.value):
        return True
    # Another value was written since: the call may have happened before that, and an undo is over.
    return not is_same(current, write.before) and call.status == UNKNOWN


def undo_write(memory: Memory, args: Mapping[str, Any], result: Any, invocation: ToolInvocation) -> None:
    """Undo a write; the caller holds the lock and has compared the value."""
    write = MemoryWrite.of(invocation)
    if not is_same(memory.read(write.item), write.before):
        memory.write(write.item, write.before, {})


def redo_write(memory: Memory, args: dict[str, Any], thread_id: str) -> None:
    """Make a write again; the caller holds the lock and has compared the value."""
    item = (tuple(args["namespace"]), args["key"])
    memory.write(item, args.get("value"), {name: args[name] for name in ("index", "ttl") if name in args})
