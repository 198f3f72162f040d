"""Runs a graph on a branch: its streams, and the updates of its state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.types import StateUpdate

from agentgit.agents import inputs
from agentgit.agents.memory import with_recorded_store
from agentgit.agents.turn_runner import END, Options, TurnRunner
from agentgit.async_api import Closing
from agentgit.errors import Conflict
from agentgit.langgraph_internals import CONFIG_KEY_STREAM_MESSAGES_V2
from agentgit.store.threads.graph_rows import AS_NODE


class Run(NamedTuple):
    """A run that can begin."""

    runner: BranchRunner
    input: Any
    config: RunnableConfig | None
    is_declined: bool = False
    """True if a person has declined what the run would have done first."""
    cancel: Callable[[], object] | None = None
    """Takes back what was done for the run, if it fails."""


class BranchRunner(TurnRunner):
    """Runs a graph on one branch, each time as a turn."""

    kept_settings = frozenset({CONFIG_KEY_STREAM_MESSAGES_V2})
    """The settings of LangGraph that a run keeps. Others could replace the saver, or an answer."""

    def _settings_of(self, config: RunnableConfig | None) -> Mapping[str, Any]:
        configurable = (config or {}).get("configurable", {})
        settings = {key: value for key, value in configurable.items() if key in self.kept_settings}
        return with_recorded_store(settings, self._recorded_store)

    def iterate(self, run: Run, options: Options) -> Iterator[Any]:
        """Run one turn and yield its chunks."""
        with (
            ExitStack() as resources,
            self._turn_context(resources, run.input, run.config, options) as (value, run_config),
        ):
            run_config["configurable"] |= self._settings_of(run.config)
            turn = self.turn
            chunks = self.instrumented_graph.stream(value, run_config, **self._durable_options(options))
            while self.turn is turn:
                with self._running():
                    chunk = next(chunks, END)
                if chunk is END:
                    return
                yield chunk

    async def aiterate(
        self, run: Run, options: Options, method: Literal["astream", "astream_events"] = "astream"
    ) -> AsyncGenerator[Any, None]:
        """Run one turn and yield its chunks, as `iterate`."""
        async with AsyncExitStack() as stack:
            value, run_config = await self._aturn(stack, run.input, run.config, options)
            run_config["configurable"] |= self._settings_of(run.config)
            turn, stream = self.turn, getattr(self.instrumented_graph, method)
            running = aiter(stream(value, run_config, **self._durable_options(options, is_async=True)))
            # A run that was taken back inside its stream fails as it closes, because it can save nothing.
            stack.push(lambda _kind, error, _trace: isinstance(error, Conflict) and self.turn is not turn)
            chunks = await stack.enter_async_context(Closing(running))
            with self._marking_end():
                while self.turn is turn:
                    with self._running():
                        chunk = await anext(chunks, END)
                    if chunk is END:
                        return
                    yield chunk

    def bulk_update_state(
        self, config: RunnableConfig | None, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Update the state in a turn without a user message."""
        with (
            ExitStack() as resources,
            self._turn_context(resources, inputs.UPDATE, config) as (_, run_config),
            self._running(),
        ):
            return self.instrumented_graph.bulk_update_state(_with_node(run_config, supersteps), supersteps)

    async def abulk_update_state(
        self, config: RunnableConfig | None, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Update the state, as `bulk_update_state`."""
        async with AsyncExitStack() as stack:
            _, run_config = await self._aturn(stack, inputs.UPDATE, config)
            with self._running():
                updated: RunnableConfig = await self.instrumented_graph.abulk_update_state(
                    _with_node(run_config, supersteps), supersteps
                )
                return updated


def _with_node(config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
    """Return the config of an update with the node that it names, for a rerun."""
    nodes = {update[1] for step in supersteps for update in step}
    if len(nodes) != 1 or None in nodes:
        return config
    return merge_configs(config, {"metadata": {AS_NODE: nodes.pop()}})
