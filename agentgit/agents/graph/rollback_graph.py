"""The graph for hosts and clients of LangGraph. Its threads are sessions; a run at an older checkpoint rolls back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.graph.state import CompiledStateGraph

from agentgit.agents.branch_context import Graph
from agentgit.agents.branch_runner import Run
from agentgit.agents.graph.threads import Threads
from agentgit.agents.inputs import UPDATE
from agentgit.agents.session_graph import SessionGraph
from agentgit.agents.turn_runner import is_nested, require_not_nested
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.langgraph_internals import CONFIG_KEY_TASK_ID, is_internal_key
from agentgit.next_steps import Next


class RollbackGraph(SessionGraph):
    """A compiled graph whose threads are sessions. `Repository.graph` creates it.

    Each thread id belongs to one session. A run continues the current branch of its session. A run at an older
    checkpoint rolls back to it first: the later effects are reversed, and the run takes place on a new branch.
    Everything else is as on the graph that it was made from.
    """

    agentgit_threads: Threads
    """Its threads."""

    @contextmanager
    def _face(self) -> Iterator[None]:
        try:
            yield
        except AgentGitError as error:
            error.face = "graph"
            raise

    def _inside(self, config: RunnableConfig | None) -> Graph | None:
        """Return the plain graph if a recorded turn runs it, which then records what it does.

        It would lose effects and a workspace that only this graph was given.
        """
        return self._plain() if self.agentgit_threads.wrapped.is_bare and is_nested(config) else None

    def _iterate(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Iterator[Any]:
        inner = self._inside(config)
        return super()._iterate(input, config, options) if inner is None else inner.stream(input, config, **options)

    def _aiterate(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        inner: Any = self._inside(config)
        return super()._aiterate(input, config, options) if inner is None else inner.astream(input, config, **options)

    async def _await_previous_run(self, config: RunnableConfig | None) -> None:
        await self.agentgit_threads.await_previous_run(self._config(config))

    def _open_run(self, input: Any, config: RunnableConfig | None) -> Run:
        if input is UPDATE:
            return self.agentgit_threads.update(self._config(config), self._plain())
        run = self.agentgit_threads.run(self._config(config), input, self._plain())
        if run.is_declined and self.get_state(run.config).next:
            raise InvalidInput(
                "Nothing was done. The thread is where it was, in the middle of a run.", Next("continue")
            )
        return run

    def _open_reading(self, config: RunnableConfig | None) -> tuple[Graph, RunnableConfig]:
        graph = self._plain()
        graph.checkpointer = self.agentgit_threads.reader
        configurable = (config or {}).get("configurable", {})
        outside = {key: value for key, value in configurable.items() if not is_internal_key(key)}
        return graph, {**(config or {}), "configurable": outside}

    def _config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config of a run, with what `with_config` has set."""
        require_not_nested(config)
        if CONFIG_KEY_TASK_ID in ensure_config(config)["configurable"]:  # of this call or around it
            raise InvalidInput(
                "A graph of repo.graph(...) cannot be a node of another graph: a rollback of the outer thread would "
                "not undo what it does. Use the plain graph as the node, and give the outer graph to repo.graph(...)."
            )
        return merge_configs(self.config, config)

    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """Return a copy with other attributes, as the graph's `copy`. It keeps the sessions: a saver is only shown.

        A host with a saver and a store of its own may refuse a graph that shows others. The copy with
        `{"checkpointer": None}`, for such a host, shows no store, either.
        """
        shown = update or {}
        return super().copy({"store": None, **shown} if shown.get("checkpointer", self) is None else shown)


class RollbackStateGraph(RollbackGraph, CompiledStateGraph[Any, Any, Any, Any]):
    """A `RollbackGraph` made from a compiled `StateGraph`."""


def make_graph(threads: Threads) -> RollbackGraph:
    """Make the graph of threads."""
    plain: Graph = threads.wrapped.graph
    graph = object.__new__(RollbackStateGraph if isinstance(plain, CompiledStateGraph) else RollbackGraph)
    graph._take_from(plain)
    graph.checkpointer, graph.agentgit_threads = threads.reader, threads
    return graph
