"""A run of a served graph on the branch of its thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig

from agentgit.agents.branch_context import ClientThread, Graph, TurnSettings
from agentgit.agents.branch_runner import BranchRunner
from agentgit.agents.graph import confirmation
from agentgit.agents.graph.confirmation import Confirmation
from agentgit.agents.graph.served_graphs import HostRun, ServedGraphs
from agentgit.async_api import Closing
from agentgit.handles.context import Context
from agentgit.langgraph_internals import CONFIG_KEYS_OF_HOSTS
from agentgit.store.queries.graph_points import BranchHead


class Run(NamedTuple):
    """A run that can begin."""

    runner: ThreadRunner
    input: Any
    config: RunnableConfig
    is_declined: bool = False
    host_run: HostRun | None = None
    cancel: Callable[[], object] | None = None


class ThreadRunner(BranchRunner):
    """Runs the graph on a branch that the graph and its clients know by the id of their thread."""

    def __init__(
        self,
        context: Context,
        graph: Graph,
        settings: TurnSettings,
        branch: int | BranchHead,
        client: ClientThread,
        asked: Confirmation | None = None,
        *,
        is_confirmed: bool = False,
    ) -> None:
        self._asked = asked  # before the graph is instrumented
        super().__init__(context, graph, settings, branch, client)
        self._branch.begins_again = True if is_confirmed else None
        if asked is not None:
            self.leaves_world_alone()
            self._branch.begins_again = False

    async def await_end(self) -> None:
        """Wait briefly for the end of the turn, if it was cancelled or its stream was left."""
        await self._await_previous_turn()

    def leaves_world_alone(self) -> None:
        """Run a turn in which nothing acts, also where another branch has changed the world."""
        self._branch.needs_world = False

    @property
    def _conversation_id(self) -> str:
        return self._branch.client_thread

    def iterate(self, run: Run, options: Mapping[str, Any]) -> Iterator[Any]:
        """Run one turn and yield its chunks. LangGraph's own settings for the run stay as they are in its config."""
        with self._counted(run):
            yield from self._iterate_stream(run.input, run.config, options, _internal_settings(run.config))

    async def aiterate(self, run: Run, options: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        with self._counted(run):
            stream = self._aiterate_stream(run.input, run.config, options, _internal_settings(run.config))
            async with Closing(stream) as chunks:
                async for chunk in chunks:
                    yield chunk

    @contextmanager
    def _counted(self, run: Run) -> Iterator[None]:
        """Count a run of a host until it ends by itself. One that is cancelled stays, so that it can be rolled back."""
        graphs, run_id = ServedGraphs.of(self._branch.registry), run_id_of(run.config)
        if run.host_run is None or run_id is None:
            yield
            return
        graphs.begin(run_id, run.host_run)
        try:
            yield
        except Exception:
            graphs.runs.pop(run_id, None)
            raise
        graphs.runs.pop(run_id, None)

    def _instrument(self) -> None:
        super()._instrument()
        if self._asked is not None and self._asked.plan is not None:
            self._instrumented_graph = confirmation.asking_copy(self._instrumented_graph, self._asked)


def _internal_settings(config: RunnableConfig) -> Mapping[str, Any]:
    """Return what LangGraph or a host has put into a config. Other settings could replace the saver, or an answer."""
    return {k: v for k, v in config["configurable"].items() if k in CONFIG_KEYS_OF_HOSTS}


def run_id_of(config: RunnableConfig) -> str | None:
    run_id = config["configurable"].get("run_id") or (config.get("metadata") or {}).get("run_id")
    return str(run_id) if run_id else None
