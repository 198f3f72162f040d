"""The long-term memory of a rerun: reads see the user's store as it was, and writes stay in the rerun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from agentgit.effects import ToolInvocation
from agentgit.effects.memory import ItemName, MemoryWrite, names_item


class IsolatedStore(InMemoryStore):
    """A store over the user's store, which is only read. It holds the items that differ from the user's."""

    def __init__(self, store: BaseStore, values: Mapping[ItemName, Any]) -> None:
        super().__init__(index=getattr(store, "index_config", None))
        self._store = store
        self._changed = set(values)
        self.supports_ttl, self.ttl_config = store.supports_ttl, store.ttl_config
        super().batch([PutOp(*name, value, index=False) for name, value in values.items()])

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        own_ops = list(ops)
        reads = self._as_reads(own_ops)
        found = self._store.batch(reads) if reads else []
        return self._merge(own_ops, found, super().batch(self._as_own(own_ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        own_ops = list(ops)
        reads = self._as_reads(own_ops)
        found = await self._store.abatch(reads) if reads else []
        return self._merge(own_ops, found, await super().abatch(self._as_own(own_ops)))

    def _as_reads(self, ops: Sequence[Op]) -> list[Op]:
        return [_as_read(op, len(self._changed)) for op in ops if not isinstance(op, PutOp)]

    def _as_own(self, ops: Sequence[Op]) -> list[Op]:
        return [op if isinstance(op, PutOp) else _as_read(op, len(self._changed)) for op in ops]

    def _merge(self, ops: Sequence[Op], found: Sequence[Any], own: Sequence[Any]) -> list[Result]:
        """Return what the user's store has found, with the items of this store in place of its own."""
        theirs = iter(found)
        results: list[Result] = [
            None if isinstance(op, PutOp) else self._merge_read(op, next(theirs), mine)
            for op, mine in zip(ops, own, strict=True)
        ]
        self._changed.update((tuple(op.namespace), str(op.key)) for op in ops if isinstance(op, PutOp))
        return results

    def _merge_read(self, op: Op, found: Any, own: Any) -> Any:
        if isinstance(op, GetOp):
            return own if (tuple(op.namespace), str(op.key)) in self._changed else found
        if isinstance(op, SearchOp):
            return self._merge_search(op, found, own)[op.offset : op.offset + op.limit]
        if isinstance(op, ListNamespacesOp):
            return sorted({*found, *own})[op.offset : op.offset + op.limit]
        return found

    def _merge_search(self, op: SearchOp, found: list[SearchItem], own: list[SearchItem]) -> list[SearchItem]:
        items = {_name(item): item for item in own}
        if isinstance(self._store, InMemoryStore):  # in the order in which they were first put
            merged = [items.pop(_name(item), item) for item in found if not self._is_hidden(item, items)]
            merged += items.values()
        else:  # the newest first
            newest = sorted(own, key=lambda item: item.updated_at, reverse=True)
            merged = [*newest, *(item for item in found if _name(item) not in self._changed)]
        return sorted(merged, key=lambda item: -(item.score or 0)) if op.query else merged

    def _is_hidden(self, item: Item, own: Mapping[ItemName, Item]) -> bool:
        return _name(item) in self._changed and _name(item) not in own


def memory_before(calls: Iterable[ToolInvocation]) -> dict[ItemName, Any]:
    """Return the values that items of memory had before the first of these calls, oldest first, wrote to them."""
    values: dict[ItemName, Any] = {}
    for call in calls:
        if names_item(call.args):
            write = MemoryWrite.of(call)
            values.setdefault(write.item, write.before)
    return values


def _name(item: Item) -> ItemName:
    return tuple(item.namespace), item.key


def _as_read(op: Op, changed: int) -> Op:
    """Return an operation that finds enough items for the caller after those that have changed are left out."""
    if isinstance(op, GetOp):
        return op._replace(refresh_ttl=False)
    if isinstance(op, SearchOp):
        return op._replace(offset=0, limit=op.offset + op.limit + changed, refresh_ttl=False)
    if isinstance(op, ListNamespacesOp):
        return op._replace(offset=0, limit=op.offset + op.limit)
    return op
