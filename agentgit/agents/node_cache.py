"""LangGraph's cache of nodes and tasks, in a session.

LangGraph keys an entry by the input of a node, not by the thread. On another branch, or after an undo, the entry of a
node that acted would report an effect that is not there. So only work that recorded no call that acts is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.pregel import Pregel

from agentgit.agents.turn.turn import Turn

Pairs = Mapping[FullKey, tuple[Any, int | None]]
"""The entries that LangGraph stores, each with its time to live in seconds."""


def cache_of(graph: Pregel[Any, Any, Any, Any]) -> BaseCache[Any] | None:
    inner = (subgraph for _, subgraph in graph.get_subgraphs(recurse=True))
    return next((one.cache for one in (graph, *inner) if isinstance(one, Pregel) and one.cache is not None), None)


class HarmlessCache(BaseCache[Any]):
    """A cache that stores only work that recorded no call that acts; its entries answer on every branch."""

    def __init__(self, cache: BaseCache[Any], current_turn: Callable[[], Turn | None]) -> None:
        super().__init__(serde=cache.serde)
        self.cache = cache
        self.current_turn = current_turn
        self._turn: Turn | None = None
        self._acted_before: dict[FullKey, int] = {}
        """For each missing entry, how many calls had acted in this turn when it was first requested."""

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        return self._restore(keys, self.cache.get([_own(key) for key in keys]))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        return self._restore(keys, await self.cache.aget([_own(key) for key in keys]))

    def _restore(self, keys: Sequence[FullKey], found: Mapping[FullKey, Any]) -> dict[FullKey, Any]:
        turn = self.current_turn()
        if turn is not self._turn:
            self._turn, self._acted_before = turn, {}
        if turn is not None:
            for key in keys:  # the first count stays, because LangGraph requests the entry again during the work
                self._acted_before.setdefault(key, turn.calls.acted_count)
        return {key: found[_own(key)] for key in keys if _own(key) in found}

    # LangGraph reads these two attributes when a task has ended, and calls them later from another thread, when tasks
    # of the next step may already act. They are properties so that the calls are counted at the time of the read.

    @property
    def set(self) -> Callable[[Pairs], None]:
        acted_count = self._count_acted()
        return lambda pairs: self.cache.set(self._harmless(pairs, acted_count))

    @property
    def aset(self) -> Callable[[Pairs], Coroutine[Any, Any, None]]:
        acted_count = self._count_acted()

        async def store_entries(pairs: Pairs) -> None:
            await self.cache.aset(self._harmless(pairs, acted_count))

        return store_entries

    def _count_acted(self) -> int:
        turn = self.current_turn()
        return turn.calls.acted_count if turn is not None else 0

    def _harmless(self, pairs: Pairs, acted_count: int) -> dict[FullKey, tuple[Any, int | None]]:
        turn = self.current_turn()
        # The work that a continued turn ends may have acted in an earlier turn, whose tasks do not run again.
        if turn is None or turn is not self._turn or not turn.turn_input.is_new:
            return {}
        return {_own(key): entry for key, entry in pairs.items() if self._acted_before.pop(key, None) == acted_count}

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        self.cache.clear(namespaces)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        await self.cache.aclear(namespaces)


def _own(key: FullKey) -> FullKey:
    """Return the key of a session's entry: nothing is known about what an entry of a plain graph did."""
    namespace, name = key
    return namespace, f"{name}@agentgit"
