"""A graph's description of itself: its name, nodes, drawing, schemas and subgraphs, without running it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig

from agentgit.agents.branch_context import Graph
from agentgit.langgraph_internals import PregelNode


class DescribedGraph(Runnable[Any, Any]):
    """The attributes and methods of a compiled graph that describe it. Each returns what the graph returns."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        """The user's graph, with the config of `with_config`."""
        self.name = graph.get_name()

    @property
    def nodes(self) -> Mapping[str, PregelNode]:
        """The nodes of the graph, by name."""
        return self.graph.nodes

    @property
    def channels(self) -> Mapping[str, Any]:
        """The channels of the graph's state, by name."""
        channels: Mapping[str, Any] = self.graph.channels
        return channels

    @property
    def config(self) -> RunnableConfig | None:
        """The config that each turn begins with; `with_config` sets it."""
        return self.graph.config

    @property
    def context_schema(self) -> type[Any] | None:
        """The type of the `context` that a turn takes."""
        schema: type[Any] | None = self.graph.context_schema
        return schema

    @property
    def stream_mode(self) -> Any:
        """The default mode of `stream`."""
        return self.graph.stream_mode

    @property
    def stream_channels_list(self) -> Sequence[str]:
        """The channels that `stream` reports."""
        return self.graph.stream_channels_list

    @property
    def stream_channels_asis(self) -> str | Sequence[str]:
        """The channels that `stream` reports, or the only one."""
        return self.graph.stream_channels_asis

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """Return the name of the graph, as the graph's `get_name`."""
        return self.graph.get_name(suffix, name=name)

    def get_graph(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Return a drawable form of the graph, as the graph's `get_graph`."""
        return self.graph.get_graph(config, **kwargs)

    async def aget_graph(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Return a drawable form of the graph, as the graph's `aget_graph`."""
        return await self.graph.aget_graph(config, **kwargs)

    def get_subgraphs(self, *, namespace: str | None = None, recurse: bool = False) -> Iterator[tuple[str, Any]]:
        """Yield the subgraphs with their namespaces, as the graph's `get_subgraphs`."""
        return self.graph.get_subgraphs(namespace=namespace, recurse=recurse)

    async def aget_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, Any]]:
        """Yield the subgraphs with their namespaces, as the graph's `aget_subgraphs`."""
        async for one in self.graph.aget_subgraphs(namespace=namespace, recurse=recurse):
            yield one

    # -- schemas

    @property
    def InputType(self) -> Any:  # noqa: N802  # the name in LangChain
        """The type of the input."""
        return self.graph.InputType

    @property
    def OutputType(self) -> Any:  # noqa: N802  # the name in LangChain
        """The type of the output."""
        return self.graph.OutputType

    def get_input_schema(self, config: RunnableConfig | None = None) -> Any:
        """Return the pydantic model of the input, as the graph's `get_input_schema`."""
        return self.graph.get_input_schema(config)

    def get_input_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """Return the JSON schema of the input, as the graph's `get_input_jsonschema`."""
        return self.graph.get_input_jsonschema(config)

    def get_output_schema(self, config: RunnableConfig | None = None) -> Any:
        """Return the pydantic model of the output, as the graph's `get_output_schema`."""
        return self.graph.get_output_schema(config)

    def get_output_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """Return the JSON schema of the output, as the graph's `get_output_jsonschema`."""
        return self.graph.get_output_jsonschema(config)

    def config_schema(self, *, include: Sequence[str] | None = None) -> Any:
        """Return the pydantic model of the config, as the graph's `config_schema`, which LangGraph deprecates."""
        return self.graph.config_schema(include=include)

    def get_config_jsonschema(self, *, include: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the JSON schema of the config, as the graph's `get_config_jsonschema`, which LangGraph deprecates."""
        return self.graph.get_config_jsonschema(include=include)

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the context, as the graph's `get_context_jsonschema`."""
        return self.graph.get_context_jsonschema()
