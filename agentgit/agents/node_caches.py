"""LangGraph's caches of nodes and tasks under a session: an entry answers only where the effects of its work stand.

LangGraph names an entry by the input of a node, not by the thread. Served on another branch, it would claim an order
that was cancelled, or one that nobody made in this session. So each cache of a wrapped graph is wrapped too. An entry
notes the calls that acted on the world while its node ran, belongs to the branch that made it, and is served to that
branch and to those that come from it while all of these calls stand. An entry of work that acted on nothing serves
every branch of every session. Work that ends in a turn that goes on may have begun in an earlier one, whose tasks and
subgraphs LangGraph does not run again: everything that stands on the path by then counts as its doing.

Entries lie in the namespaces in which LangGraph puts its own, so that `clear_cache` clears them, under keys that only a
wrapped graph asks for: of a plain graph's entry nobody knows what its work did.
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
"""Entries that LangGraph keeps, each with the seconds that it lives."""

ANY_BRANCH = "agentgit"
"""The end of the keys of entries whose work acted on nothing; the other keys end with the id of a branch."""

WRITES, CALLS = "writes", "calls"


class BranchCache(BaseCache[Any]):
    """A cache as the graph of one branch sees it.

    Args:
        cache: The user's cache; it keeps the entries.
        turn: A function that returns the turn that runs now; None between turns.
    """

    def __init__(self, cache: BaseCache[Any], turn: Callable[[], Turn | None]) -> None:
        super().__init__(serde=cache.serde)
        self.cache = cache
        self.running = turn
        self._turn: Turn | None = None
        self._branches: list[int] = []
        self._begun: dict[FullKey, int] = {}
        """For each entry that was not there, how many calls had acted in this turn when it was first asked for."""
        self._before: list[str] = []
        """The calls that had acted before this turn, if it goes on: work that began before does not make all
        its calls again."""

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the entries that stand on this branch."""
        asked = self._names(keys)
        return self._standing(asked, self.cache.get([name for names in asked.values() for name in names]))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the entries that stand on this branch."""
        asked = await asyncio.to_thread(self._names, keys)
        found = await self.cache.aget([name for names in asked.values() for name in names])
        return await asyncio.to_thread(self._standing, asked, found)

    # LangGraph looks these two up when a task has ended, and calls them later from another thread: by then the tasks
    # of the next step may act. So it is noted when they are looked up how many calls had acted.

    @property
    def set(self) -> Callable[[Pairs], None]:
        """Keep entries, each with the calls that acted while its work was done."""
        until = self._acted()
        return lambda pairs: self.cache.set(self._noted(pairs, until))

    @property
    def aset(self) -> Callable[[Pairs], Coroutine[Any, Any, None]]:
        """Keep entries, each with the calls that acted while its work was done."""
        until = self._acted()

        async def keep(pairs: Pairs) -> None:
            await self.cache.aset(self._noted(pairs, until))

        return keep

    def _acted(self) -> int:
        turn = self.running()
        return len(turn.recorder.acted) if turn is not None else 0

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the entries of these namespaces, or all."""
        self.cache.clear(namespaces)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the entries of these namespaces, or all."""
        await self.cache.aclear(namespaces)

    def _names(self, keys: Sequence[FullKey]) -> dict[FullKey, list[FullKey]]:
        """List for each key those under which its entry may lie, the nearest branch first."""
        turn = self.running()
        if turn is None:  # nobody could tell what stands
            return {}
        if turn is not self._turn:
            with turn.context.store.database.reading() as connection:
                path = turn.context.store.parts(connection, turn.branch)
                known = [] if turn.given.is_new else turn.context.store.world.standing_keys(connection, path)
            self._turn, self._begun, self._before = turn, {}, known
            self._branches = [part.branch_id for part in reversed(path)]
        return {(ns, key): [(ns, f"{key}@{end}") for end in (*self._branches, ANY_BRANCH)] for ns, key in keys}

    def _standing(self, asked: Mapping[FullKey, Sequence[FullKey]], found: Mapping[FullKey, Any]) -> dict[FullKey, Any]:
        """Choose among the entries that were found."""
        chosen: dict[FullKey, Any] = {}
        for key, names in asked.items():
            entries = (found[name] for name in names if name in found)
            entry = next((one for one in entries if self._stands(one[CALLS])), None)
            if entry is not None:
                chosen[key] = entry[WRITES]
            elif self._turn is not None:
                # The first time counts: LangGraph asks again while the work is being done.
                self._begun.setdefault(key, len(self._turn.recorder.acted))
        return chosen

    def _stands(self, calls: Sequence[str]) -> bool:
        """Return whether calls, by their idempotency keys, are on the path of this branch and were not reversed."""
        if not calls or self._turn is None:
            return not calls
        store, branch = self._turn.context.store, self._turn.branch
        with store.database.reading() as connection:
            path = store.parts(connection, branch)
            return store.world.has_standing(connection, branch.external_session_id, path, calls)

    def _noted(self, pairs: Pairs, until: int) -> dict[FullKey, tuple[Any, int | None]]:
        """Write down with each entry what its work did.

        Args:
            pairs: The entries to write down.
            until: The number of calls that had acted when it was done.
        """
        turn = self.running()
        if turn is None:
            return {}
        noted: dict[FullKey, tuple[Any, int | None]] = {}
        for (ns, key), (writes, ttl) in pairs.items():
            since = self._begun.pop((ns, key), 0) if turn is self._turn else 0
            acted = self._before + turn.recorder.acted[since:until]
            end = turn.branch.id if acted else ANY_BRANCH
            noted[ns, f"{key}@{end}"] = ({WRITES: writes, CALLS: sorted(set(acted))}, ttl)
        return noted


def hidden_cache(graph: Pregel[Any, Any, Any, Any]) -> BaseCache[Any] | None:
    """Find the cache of a graph that nodes or tools call out of sight, so that it runs as it is and not as a copy.

    Args:
        graph: The user's graph.
    """
    caches = (inner.cache for inner in _hidden(graph, set()) if inner.cache is not None)
    found = next(caches, None)
    return (graph.cache or found) if found is not None else None


def _hidden(
    graph: Pregel[Any, Any, Any, Any], seen: set[tuple[int, bool]], *, is_hidden: bool = False
) -> Iterator[Pregel[Any, Any, Any, Any]]:
    """Visit the graphs that run as they are. Graphs may call each other in a circle."""
    if (id(graph), is_hidden) in seen:
        return
    seen.add((id(graph), is_hidden))
    if is_hidden:
        yield graph
    for node in graph.nodes.values():
        if isinstance(node.bound, Pregel):
            yield from _hidden(node.bound, seen, is_hidden=is_hidden)
            continue
        tools = node.bound.tools_by_name.values() if isinstance(node.bound, ToolNode) else ()
        functions = (getattr(tool, name, None) for tool in tools for name in ("func", "coroutine"))
        for inner in (*node.subgraphs, *(value for function in functions for value in _closed_over(function))):
            if isinstance(inner, Pregel):
                yield from _hidden(inner, seen, is_hidden=True)


def _closed_over(function: Any) -> Iterator[Any]:
    """List what a function refers to by the names of its closure and of its module."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # it is not filled yet
            yield cell.cell_contents
    names = getattr(function, "__globals__", {})
    yield from (names[name] for name in getattr(getattr(function, "__code__", None), "co_names", ()) if name in names)
