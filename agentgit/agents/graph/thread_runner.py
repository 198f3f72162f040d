"""A run of a served graph on the branch of its thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from agentgit.agents.branch_context import ClientThread, Graph, TurnSettings
from agentgit.agents.branch_runner import BranchRunner, Run
from agentgit.agents.graph import confirmation
from agentgit.agents.graph.confirmation import Confirmation
from agentgit.agents.graph.served_graphs import HostRun, ServedGraphs
from agentgit.agents.turn_runner import Options
from agentgit.async_api import Closing
from agentgit.handles.context import Context
from agentgit.langgraph_internals import CONFIG_KEYS_OF_HOSTS
from agentgit.store.queries.graph_points import BranchHead


class ThreadRunner(BranchRunner):
    """Runs the graph on a branch that the graph and its clients know by the id of their thread."""

    kept_settings = CONFIG_KEYS_OF_HOSTS

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
        host_run: HostRun | None = None,
    ) -> None:
        self._asked, self._host_run = asked, host_run  # before the graph is instrumented
        super().__init__(context, graph, settings, branch, client)
        self.branch.begins_again = True if is_confirmed else None
        if asked is not None:
            self.leaves_world_alone()
            self.branch.begins_again = False

    def leaves_world_alone(self) -> None:
        """Run a turn in which nothing acts, also where another branch has changed the world."""
        self.branch.needs_world = False

    @property
    def _conversation_id(self) -> str:
        return self.branch.client_thread

    def iterate(self, run: Run, options: Options) -> Iterator[Any]:
        """Run one turn and yield its chunks. LangGraph's own settings for the run stay as they are in its config."""
        with self._counted(run):
            yield from super().iterate(run, options)

    async def aiterate(
        self, run: Run, options: Options, method: Literal["astream", "astream_events"] = "astream"
    ) -> AsyncGenerator[Any, None]:
        with self._counted(run):
            async with Closing(super().aiterate(run, options, method)) as chunks:
                async for chunk in chunks:
                    yield chunk

    @contextmanager
    def _counted(self, run: Run) -> Iterator[None]:
        """Count a run of a host until it ends by itself. One that is cancelled stays, so that it can be rolled back."""
        graphs, run_id = ServedGraphs.of(self.branch.registry), run_id_of(run.config or {})
        if self._host_run is None or run_id is None:
            yield
            return
        graphs.begin(run_id, self._host_run)
        try:
            yield
        except Exception:
            graphs.runs.pop(run_id, None)
            raise
        graphs.runs.pop(run_id, None)

    def _instrument(self) -> None:
        super()._instrument()
        if self._asked is not None and self._asked.plan is not None:
            self.instrumented_graph = confirmation.asking_copy(self.instrumented_graph, self._asked)


def run_id_of(config: RunnableConfig) -> str | None:
    run_id = config.get("configurable", {}).get("run_id") or (config.get("metadata") or {}).get("run_id")
    return str(run_id) if run_id else None
