"""A compiled graph whose runs are turns of a session: LangGraph's own `Pregel`, which runs on branches."""

from __future__ import annotations

import asyncio
import copy
import inspect
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, TypeGuard, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot, StateUpdate

from agentgit.agents.branch_context import Graph
from agentgit.agents.branch_runner import Run
from agentgit.agents.inputs import UPDATE
from agentgit.agents.isolation import detached
from agentgit.async_api import Closing

Method = TypeVar("Method", bound=Callable[..., Any])


def signed_as(original: Callable[..., Any]) -> Callable[[Method], Method]:
    """Return a decorator that sets the signature of LangGraph's own method, whose options a method passes on."""

    def sign(method: Method) -> Method:
        method.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # `inspect` reads it
        return method

    return sign


class SessionGraph(Pregel[Any, Any, Any, Any]):
    """A compiled graph whose runs are turns of a session. Everything else is as on the graph that it was made from."""

    graph: Graph
    """The graph that it was made from."""

    def _take_from(self, graph: Graph) -> None:
        """Take over the attributes of a graph. Pregel's own `__init__` would validate the nodes again."""
        self.__dict__.update(graph.__dict__)
        self.graph = graph

    # -- runs

    @abstractmethod
    def _open_run(self, input: Any, config: RunnableConfig | None) -> Run:
        """Choose the branch of a run, or of an update of the state: its input is `UPDATE`."""

    async def _await_previous_run(self, config: RunnableConfig | None) -> None:
        """Wait briefly for the end of a run that was left."""

    def _face(self) -> AbstractContextManager[None]:
        """Word the errors of the block for those who run the graph."""
        return nullcontext()

    @signed_as(Pregel.stream)
    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Run the graph as one turn, as the graph's `stream`. A stream that is left leaves no end checkpoint.

        Raises:
            NotFound: The thread has no such checkpoint.
            RollbackBlocked: The run would need a rollback that is not possible, or not without consent.
            Conflict: Another run of the branch has not ended, or somebody has moved it.
        """
        return self._iterate(input, config, kwargs)

    def _iterate(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Iterator[Any]:
        with self._face():
            run = self._open_run(input, config)
            yield from run.runner.iterate(run, options)

    @signed_as(Pregel.astream)
    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Run the graph as one turn, as the graph's `astream`."""
        return self._aiterate(input, config, kwargs)

    async def _aiterate(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        with self._face():
            await self._await_previous_run(config)
            run = await asyncio.to_thread(self._open_run, input, config)
            async with Closing(run.runner.aiterate(run, options)) as stream:
                async for chunk in stream:
                    yield chunk

    def bulk_update_state(
        self, config: RunnableConfig | None, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Update the state, as the graph's `bulk_update_state`, in a turn without a user message.

        On a served graph, an update at an older checkpoint begins a new branch. The world stays as it is until the next
        run, which asks before it reverses what needs consent. If the update fails, the thread stays on its branch.
        """
        with self._face():
            run = self._open_run(UPDATE, config)
            try:
                return run.runner.bulk_update_state(run.config, supersteps)
            except Exception:
                if run.cancel is not None:
                    run.cancel()
                raise

    async def abulk_update_state(
        self, config: RunnableConfig | None, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Update the state, as `bulk_update_state`."""
        with self._face():
            await self._await_previous_run(config)
            run = await asyncio.to_thread(self._open_run, UPDATE, config)
            try:
                return await run.runner.abulk_update_state(run.config, supersteps)
            except Exception:
                if run.cancel is not None:
                    await asyncio.to_thread(run.cancel)
                raise

    # -- reading

    @abstractmethod
    def _open_reading(self, config: RunnableConfig | None) -> tuple[Graph, RunnableConfig]:
        """Return a graph with a saver that reads the sessions, and the config to read with."""

    @signed_as(Pregel.get_state)
    def get_state(self, config: RunnableConfig | None = None, **kwargs: Any) -> StateSnapshot:
        """Return the newest state, as the graph's `get_state`."""
        graph, own_config = self._open_reading(config)
        with detached():  # else LangChain merges the surrounding config into it
            return graph.get_state(own_config, **kwargs)

    @signed_as(Pregel.aget_state)
    async def aget_state(self, config: RunnableConfig | None = None, **kwargs: Any) -> StateSnapshot:
        """Return the newest state, as `get_state`."""
        graph, own_config = await asyncio.to_thread(self._open_reading, config)
        with detached():
            return await graph.aget_state(own_config, **kwargs)

    @signed_as(Pregel.get_state_history)
    def get_state_history(self, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[StateSnapshot]:
        """List the graph checkpoints, newest first, as the graph's `get_state_history`."""
        graph, own_config = self._open_reading(config)
        return graph.get_state_history(own_config, **kwargs)

    @signed_as(Pregel.aget_state_history)
    async def aget_state_history(
        self, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[StateSnapshot]:
        """List the graph checkpoints, as `get_state_history`."""
        graph, own_config = await asyncio.to_thread(self._open_reading, config)
        async for snapshot in graph.aget_state_history(own_config, **kwargs):
            yield snapshot

    # -- copies

    def _plain(self) -> Graph:
        """Return the graph to run, with the store and the other settings that a copy has of its own."""
        plain = copy.copy(self.graph)
        own = {name: value for name, value in vars(self).items() if name in vars(plain) and name != "checkpointer"}
        plain.__dict__.update({**own, "store": own["store"] or plain.store})
        return plain

    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """Return a copy with other attributes, as the graph's `copy`. It keeps the sessions: a saver is only shown."""
        copied = copy.copy(self)
        copied.__dict__.update(update or {})
        return copied


def is_plain(value: object) -> TypeGuard[Graph]:
    """Return whether a value is a compiled graph that does not belong to sessions already."""
    return isinstance(value, Pregel) and not isinstance(value, SessionGraph)
