"""LangGraph's node and task caches in a session: an entry is used only while the effects of its work are in place.

LangGraph keys an entry by the input of a node, not by the thread. On another branch, such an entry could report an
order that was cancelled, or that was never made in this session. Therefore each cache of a wrapped graph is wrapped.

An entry records the calls that acted on the world while its node ran. It belongs to the branch that created it, and is
served to that branch and its descendants as long as none of these calls is reversed. An entry whose work did not act on
the world is served to every branch of every session. Work that ends in a continued turn may have begun in an earlier
turn, whose tasks and subgraphs LangGraph does not run again. Such work is assumed to have made all calls on the path
that are in effect.

Entries are stored in LangGraph's own namespaces, so that `clear_cache` deletes them, but under keys that only a wrapped
graph uses, because nothing is known about the effects behind an entry of a plain graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel

from agentgit.agents.turn.turn import Turn

Pairs = Mapping[FullKey, tuple[Any, int | None]]
"""The entries that LangGraph stores, each with its time to live in seconds."""

ANY_BRANCH = "agentgit"
"""The suffix of the keys of entries whose work did not act on the world; other keys end with a branch id."""

WRITES, CALLS = "writes", "calls"


class BranchCache(BaseCache[Any]):
    """The view that the graph of one branch has of a cache."""

    def __init__(self, cache: BaseCache[Any], current_turn: Callable[[], Turn | None]) -> None:
        super().__init__(serde=cache.serde)
        self.cache = cache
        self.current_turn = current_turn
        self._turn: Turn | None = None
        self._branches: list[int] = []
        self._start_counts: dict[FullKey, int] = {}
        """For each missing entry, the number of calls that had acted in this turn when it was first requested."""
        self._earlier_keys: list[str] = []
        """The calls that had acted before this turn, if it continues an earlier one; else empty.

        Work that began earlier does not make all its calls again."""

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the entries that are valid on this branch."""
        candidates = self._candidate_keys(keys)
        return self._choose_valid(candidates, self.cache.get([name for names in candidates.values() for name in names]))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the entries that are valid on this branch."""
        candidates = await asyncio.to_thread(self._candidate_keys, keys)
        entries = await self.cache.aget([name for names in candidates.values() for name in names])
        return await asyncio.to_thread(self._choose_valid, candidates, entries)

    # LangGraph reads these two attributes when a task has ended, and calls them later from another thread, when tasks
    # of the next step may already act. They are properties so that the calls are counted at the time of the read.

    @property
    def set(self) -> Callable[[Pairs], None]:
        """A function that stores entries, each with the calls that acted during its work."""
        acted_count = self._count_acted()
        return lambda pairs: self.cache.set(self._with_calls(pairs, acted_count))

    @property
    def aset(self) -> Callable[[Pairs], Coroutine[Any, Any, None]]:
        """A function that stores entries, each with the calls that acted during its work."""
        acted_count = self._count_acted()

        async def store_entries(pairs: Pairs) -> None:
            await self.cache.aset(self._with_calls(pairs, acted_count))

        return store_entries

    def _count_acted(self) -> int:
        turn = self.current_turn()
        return len(turn.recorder.acted_keys) if turn is not None else 0

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the entries of these namespaces, or all."""
        self.cache.clear(namespaces)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the entries of these namespaces, or all."""
        await self.cache.aclear(namespaces)

    def _candidate_keys(self, keys: Sequence[FullKey]) -> dict[FullKey, list[FullKey]]:
        """Return for each key the stored keys that may hold its entry, nearest branch first."""
        turn = self.current_turn()
        if turn is None:  # without a turn it is not known which calls are in effect
            return {}
        if turn is not self._turn:
            with turn.context.store.database.reading() as connection:
                path = turn.context.store.track_parts(connection, turn.branch)
                earlier_keys = (
                    [] if turn.turn_input.is_new else turn.context.store.world.keys_in_effect(connection, path)
                )
            self._turn, self._start_counts, self._earlier_keys = turn, {}, earlier_keys
            self._branches = [part.branch_id for part in reversed(path)]
        return {(ns, key): [(ns, f"{key}@{end}") for end in (*self._branches, ANY_BRANCH)] for ns, key in keys}

    def _choose_valid(
        self, candidates: Mapping[FullKey, Sequence[FullKey]], stored_entries: Mapping[FullKey, Any]
    ) -> dict[FullKey, Any]:
        """Choose for each key the first entry that was found and is valid."""
        chosen: dict[FullKey, Any] = {}
        for key, stored_keys in candidates.items():
            entries = (stored_entries[name] for name in stored_keys if name in stored_entries)
            entry = next((one for one in entries if self._is_valid(one[CALLS])), None)
            if entry is not None:
                chosen[key] = entry[WRITES]
            elif self._turn is not None:
                # Keep the first count, because LangGraph requests the entry again during the work.
                self._start_counts.setdefault(key, len(self._turn.recorder.acted_keys))
        return chosen

    def _is_valid(self, call_keys: Sequence[str]) -> bool:
        """Return whether calls, given by idempotency key, are all on the path of this branch and not reversed."""
        if not call_keys or self._turn is None:
            return not call_keys
        store, branch = self._turn.context.store, self._turn.branch
        with store.database.reading() as connection:
            path = store.track_parts(connection, branch)
            return store.world.are_in_effect(connection, branch.external_session_id, path, call_keys)

    def _with_calls(self, pairs: Pairs, acted_count: int) -> dict[FullKey, tuple[Any, int | None]]:
        """Add to each entry the calls that acted during its work."""
        turn = self.current_turn()
        if turn is None:
            return {}
        entries: dict[FullKey, tuple[Any, int | None]] = {}
        for (ns, key), (writes, ttl) in pairs.items():
            start_count = self._start_counts.pop((ns, key), 0) if turn is self._turn else 0
            acted_keys = self._earlier_keys + turn.recorder.acted_keys[start_count:acted_count]
            suffix = turn.branch.id if acted_keys else ANY_BRANCH
            entries[ns, f"{key}@{suffix}"] = ({WRITES: writes, CALLS: sorted(set(acted_keys))}, ttl)
        return entries


def uncopied_graph_cache(graph: Pregel[Any, Any, Any, Any]) -> BaseCache[Any] | None:
    """Return the cache for graphs that run as the original and not as a copy, because node or tool code calls them.

    Returns None if no such graph has a cache. The cache of the user's graph takes precedence.
    """
    caches = (inner.cache for inner in _uncopied_graphs(graph, set()) if inner.cache is not None)
    first_cache = next(caches, None)
    return (graph.cache or first_cache) if first_cache is not None else None


def _uncopied_graphs(
    graph: Pregel[Any, Any, Any, Any], visited: set[tuple[int, bool]], *, is_uncopied: bool = False
) -> Iterator[Pregel[Any, Any, Any, Any]]:
    """Yield the graphs that run uncopied. Graphs may call each other recursively."""
    if (id(graph), is_uncopied) in visited:
        return
    visited.add((id(graph), is_uncopied))
    if is_uncopied:
        yield graph
    for node in graph.nodes.values():
        if isinstance(node.bound, Pregel):
            yield from _uncopied_graphs(node.bound, visited, is_uncopied=is_uncopied)
            continue
        tools = node.bound.tools_by_name.values() if isinstance(node.bound, ToolNode) else ()
        functions = (getattr(tool, name, None) for tool in tools for name in ("func", "coroutine"))
        for inner in (*node.subgraphs, *(value for function in functions for value in _referenced_objects(function))):
            if isinstance(inner, Pregel):
                yield from _uncopied_graphs(inner, visited, is_uncopied=True)


def _referenced_objects(function: Any) -> Iterator[Any]:
    """Yield the objects that a function refers to through its closure or its module's globals."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # the cell is still empty
            yield cell.cell_contents
    names = getattr(function, "__globals__", {})
    yield from (names[name] for name in getattr(getattr(function, "__code__", None), "co_names", ()) if name in names)
