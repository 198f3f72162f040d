"""The graph for hosts and clients of LangGraph. Its threads are sessions; a run at an older checkpoint rolls back."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel

from agentgit.agents.branch_context import Graph
from agentgit.agents.graph.thread_runner import Run
from agentgit.agents.graph.threads import Threads
from agentgit.agents.turn_runner import require_not_nested
from agentgit.async_api import Closing
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.langgraph_internals import CONFIG_KEY_TASK_ID
from agentgit.next_steps import Next

Method = TypeVar("Method", bound=Callable[..., Any])

OWN = ("agentgit_graph", "agentgit_threads")
"""The attributes that the graph it was made from does not have."""


def _signed_as(original: Callable[..., Any]) -> Callable[[Method], Method]:
    """Return a decorator that sets the signature of LangGraph's own method, whose options a method passes on."""

    def sign(method: Method) -> Method:
        method.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # `inspect` reads it
        return method

    return sign


@contextmanager
def _worded_for_clients() -> Iterator[None]:
    """Word the next steps of an error for the clients of a graph."""
    try:
        yield
    except AgentGitError as error:
        error.face = "graph"
        raise


class RollbackGraph(Pregel[Any, Any, Any, Any]):
    """A compiled graph whose threads are sessions. `Repository.graph` creates it.

    Each thread id belongs to one session. A run continues the current branch of its session. A run at an older
    checkpoint rolls back to it first: the later effects are reversed, and the run takes place on a new branch.
    Everything else is as on the graph that it was made from.
    """

    agentgit_graph: Graph
    """The graph that it was made from."""
    agentgit_threads: Threads
    """Its threads."""

    # -- runs

    @_signed_as(Pregel.stream)
    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Run the graph on the session of the thread, as the graph's `stream`.

        Raises:
            NotFound: The thread has no such checkpoint.
            RollbackBlocked: The run would need a rollback that is not possible, or not without consent.
            Conflict: Another run of the thread has not ended.
        """
        return self._iterate(input, config, kwargs)

    def _iterate(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Iterator[Any]:
        with _worded_for_clients():
            run = self._begin(input, config)
            yield from run.runner.iterate(run, options)

    @_signed_as(Pregel.astream)
    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Run the graph on the session of the thread, as the graph's `astream`."""
        with _worded_for_clients():
            await self.agentgit_threads.await_previous_run(self._config(config))
            run = await asyncio.to_thread(self._begin, input, config)
            async with Closing(run.runner.aiterate(run, kwargs)) as stream:
                async for chunk in stream:
                    yield chunk

    def bulk_update_state(self, config: RunnableConfig, supersteps: Sequence[Any]) -> RunnableConfig:
        """Update the state, as the graph's `bulk_update_state`. At an older checkpoint, this begins a new branch.

        The world stays as it is until the next run, which asks before it reverses what needs consent. If the update
        fails, the thread stays on its branch.
        """
        with _worded_for_clients():
            run = self.agentgit_threads.update(self._config(config), self._plain())
            try:
                return run.runner.bulk_update_state(run.config, supersteps)
            except Exception:
                if run.cancel is not None:
                    run.cancel()
                raise

    async def abulk_update_state(self, config: RunnableConfig, supersteps: Sequence[Any]) -> RunnableConfig:
        """Update the state, as `bulk_update_state`."""
        with _worded_for_clients():
            await self.agentgit_threads.await_previous_run(self._config(config))
            run = await asyncio.to_thread(self.agentgit_threads.update, self._config(config), self._plain())
            try:
                updated: RunnableConfig = await run.runner.abulk_update_state(run.config, supersteps)
            except Exception:
                if run.cancel is not None:
                    await asyncio.to_thread(run.cancel)
                raise
            return updated

    def _begin(self, input: Any, config: RunnableConfig | None) -> Run:
        run = self.agentgit_threads.run(self._config(config), input, self._plain())
        if run.is_declined and self.get_state(run.config).next:
            raise InvalidInput(
                "Nothing was done. The thread is where it was, in the middle of a run.", Next("continue")
            )
        return run

    def _config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config of a run, with what `with_config` has set."""
        require_not_nested(config)
        if CONFIG_KEY_TASK_ID in ensure_config(config)["configurable"]:  # of this call or around it
            raise InvalidInput(
                "A graph of repo.graph(...) cannot be a node of another graph: a rollback of the outer thread would "
                "not undo what it does. Use the plain graph as the node, and give the outer graph to repo.graph(...)."
            )
        return merge_configs(self.config, config)

    def _plain(self) -> Graph:
        """Return the graph to run, with the store and the other settings that a host has set on this one."""
        plain = copy.copy(self.agentgit_graph)
        plain.__dict__.update({k: v for k, v in self.__dict__.items() if k not in OWN})
        return plain

    # -- reading

    def _resolve_checkpointer(self, config: RunnableConfig) -> Any:
        return self.agentgit_threads.reader

    # -- copies

    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """Return a copy with other attributes, as the graph's `copy`. It keeps the sessions: a saver is ignored."""
        copied = copy.copy(self)
        copied.__dict__.update({k: v for k, v in (update or {}).items() if k != "checkpointer"})
        return copied


class RollbackStateGraph(RollbackGraph, CompiledStateGraph[Any, Any, Any, Any]):
    """A `RollbackGraph` made from a compiled `StateGraph`."""


def make_graph(threads: Threads) -> RollbackGraph:
    """Make the graph of threads."""
    plain: Graph = threads.wrapped.graph
    kind = RollbackStateGraph if isinstance(plain, CompiledStateGraph) else RollbackGraph
    graph = object.__new__(kind)
    graph.__dict__.update(plain.__dict__)
    graph.checkpointer = None
    graph.agentgit_graph, graph.agentgit_threads = plain, threads
    return graph
